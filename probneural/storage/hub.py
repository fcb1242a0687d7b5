"""Folders in the form of the Hugging Face Hub: a file of `save`, its arguments for readers, and a model card."""

from __future__ import annotations

import contextlib
import json
import os
import string
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from probneural import atomic
from probneural.checks import check_choice, check_instance, check_path, check_text
from probneural.distributions.latent import digest
from probneural.pretrained import MODEL
from probneural.storage.files import save
from probneural.storage.kinds import CONFIGURATION, FOREIGN
from probneural.training import files

_UNSTATED = {"license": "unknown", "training": "Recipe not stated.", "selection": "Not stated."}
"""Texts of a card, by the name of the argument, where the author gives none."""


def write_folder(model: Any, folder: str | os.PathLike[str], *, texts: Mapping[str, str] | None, source: str = "") -> None:
    """Write a model, its configuration and its card; see [`save_pretrained`][probneural.pretrained.Pretrained.save_pretrained].

    Args:
        model: Operator or predictor.
        folder: Folder.
        texts: Texts of the author for the card, by name.
        source: Repository that the card loads from; the folder's name by default.
    """
    texts = _UNSTATED | {**check_instance({} if texts is None else texts, Mapping, "model_card_kwargs", remedy="give texts")}
    for name, text in texts.items():
        check_text(text, check_choice(name, _UNSTATED, "model_card_kwargs"))
    target = check_path(folder, "save_directory")
    with contextlib.suppress(OSError):  # `save` raises an error
        target.mkdir(parents=True, exist_ok=True)
    save(model, target / MODEL)
    metadata, name, record = files.read(target / MODEL)[1], type(model).__name__, getattr(model, "trained_on", None)
    library = {"library_name": "probneural", "library_version": str(sys.modules["probneural"].__version__)}
    config = {**library, "class": name, "arguments": metadata.get(CONFIGURATION, metadata.get("parts"))}
    atomic.write(target / "config.json", json.dumps(config, indent=2).encode())
    report, calibrated_on = getattr(model, "report", ""), getattr(model, "calibrated_on", ())
    data = "Training pairs are unknown."
    if record is not None:
        times = f"history {record.history}, lead {record.lead}, step {record.step or 'unknown'}"
        data = f"Trained on {record}; {times}. Fingerprint of the pairs: `{digest(record.row_keys)}`."
    facts = config | {
        "model": f"Neural operator `{name}`" if isinstance(model, nn.Module) else f"Predictor `{model!r}`",
        "channels": f"{model.in_channels} → {model.out_channels}",
        "data": data,
        "calibration": str(report) or (f"Fitted to {len(calibrated_on)} pairs." if len(calibrated_on) else "Not calibrated."),
        "cls": f"operators.{name}" if isinstance(model, nn.Module) else "distributions.Predictor",
        "source": json.dumps(source or target.resolve().name),
        "operator": ", operator=module" if f'"kind": "{FOREIGN}"' in json.dumps(metadata) else "",
    }
    template = string.Template(Path(__file__).with_name("model_card.md").read_text(encoding="utf-8"))
    atomic.write(target / "README.md", template.substitute(facts | texts, license=json.dumps(texts["license"])).encode())
