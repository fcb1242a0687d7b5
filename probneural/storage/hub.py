"""Folders and repositories of the Hugging Face Hub: a file of `save`, its arguments for readers, and a model card."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from probneural import atomic
from probneural.checks import check_choice, check_path, check_text, optional
from probneural.distributions.latent import digest
from probneural.distributions.predictors.base import Predictor
from probneural.errors import FileError
from probneural.pairs.provenance import operator_record
from probneural.storage.files import load_as, save
from probneural.storage.kinds import CONFIGURATION, FOREIGN
from probneural.training import files

_MODEL = "model.safetensors"
_UNSTATED = {"license": "unknown", "training": "Recipe not stated.", "selection": "Not stated."}
"""Texts of a card, by the name of the argument, where the author gives none."""
_CARD = """\
---
library_name: probneural
license: {license}
tags:
- neural-operator
- uncertainty-quantification
- scientific-machine-learning
---

# {name}

{purpose}, of the Python library probneural {version}.

| | |
|---|---|
{rows}

## Training

{training}

{data}

## Calibration

{calibration}

## Selection

{selection}

## Use

```python
import probneural as pn

model = pn.{cls}.{call}
```

## Cite

```bibtex
@software{{probneural,
  title = {{probneural: posteriors over the output functions of neural operators}},
  author = {{{{The probneural authors}}}},
  version = {{{version}}},
}}
```
"""


def save_pretrained(
    model: Any, folder: str | os.PathLike[str], *, texts: Mapping[str, str] | None, repo_id: str | None = None
) -> None:
    """Write a model, its configuration and its card; see [`Pretrained`][probneural.pretrained.Pretrained]."""
    for name, text in (texts or {}).items():
        check_text(text, check_choice(name, _UNSTATED, "model_card_kwargs"))
    target = check_path(folder, "save_directory")
    with _file_errors(f"a folder {target} to write into"):
        target.mkdir(parents=True, exist_ok=True)
    save(model, target / _MODEL)
    content = files.read(target / _MODEL)[1]
    config = {
        "library_name": "probneural",
        "library_version": str(sys.modules["probneural"].__version__),
        "class": type(model).__name__,
        "arguments": content.get(CONFIGURATION, content.get("parts")),
    }
    atomic.write(target / "config.json", json.dumps(config, indent=2).encode())
    operator = ", operator=model" if f'"kind": "{FOREIGN}"' in json.dumps(content) else ""
    card = _CARD.format(
        **{**_UNSTATED, **(texts or {})},
        **_facts(model),
        version=config["library_version"],
        call=f'from_pretrained("{target.name if repo_id is None else repo_id}"{operator})',
    )
    atomic.write(target / "README.md", card.encode())


def _facts(model: Any) -> dict[str, str]:
    """Texts of a card that follow from the model."""
    name = type(model).__name__
    if isinstance(model, Predictor):
        purpose, cls, record = "Distribution over output functions", "distributions.Predictor", model.trained_on
        rows, report = model._rows(), getattr(model, "report", None)
        calibration = f"Variances or weights were fitted to {len(model.calibrated_on)} held-out pairs."
        calibration = f"```text\n{report}\n```" if report else calibration if model.is_calibrated else "Not calibrated."
    else:
        purpose, cls, record = "Neural operator", f"operators.{name}", operator_record(model)
        rows = {"channels": f"{model.in_channels} → {model.out_channels}", "trained on": str(record or "unknown")}
        calibration = "Not calibrated: an operator predicts no distribution."
    data = "Training pairs are unknown."
    if record is not None:
        times = f"history {record.history}, lead {record.lead}, step {record.step or 'unknown'}"
        data = f"Trained on {record}; {times}. Fingerprint of the pairs: `{digest(record.row_keys)}`."
    table = "\n".join(f"| {key} | {str(value).replace('|', '&#124;')} |" for key, value in rows.items())
    return {"name": name, "purpose": purpose, "cls": cls, "rows": table, "calibration": calibration, "data": data}


def push_to_hub(
    model: Any, repo_id: str, *, texts: Mapping[str, str] | None, token: str | None, private: bool | None, **commit: str | None
) -> str:
    """Upload a model; see [`Pretrained`][probneural.pretrained.Pretrained]."""
    api = optional("huggingface_hub", "push_to_hub", extra="hub").HfApi(token=token)
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(model, folder, texts=texts, repo_id=check_text(repo_id, "repo_id"))
        with _file_errors(f"a repository {repo_id} of the Hub to write into"):
            name = api.create_repo(repo_id=repo_id, private=private, exist_ok=True).repo_id
            return str(api.upload_folder(repo_id=name, folder_path=folder, **commit))


def from_pretrained(
    cls: type, source: str | os.PathLike[str], *, revision: str | None, token: str | None, **options: Any
) -> Any:
    """Load a model of a class; see [`Pretrained`][probneural.pretrained.Pretrained]."""
    path = check_path(source, "repo_id")
    if not path.is_dir():
        hub = optional("huggingface_hub", f"from_pretrained of {source}, which is no folder,", extra="hub")
        with _file_errors(f"{_MODEL} in a folder or repository {source}"):
            path = Path(hub.hf_hub_download(repo_id=str(source), filename=_MODEL, revision=revision, token=token)).parent
    return load_as(cls, path / _MODEL, **options)


@contextmanager
def _file_errors(expected: str) -> Iterator[None]:
    """Raise errors of the system and of the Hub as a FileError."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise FileError(expected=expected, got=str(error), remedy="check name, access and connection") from error
