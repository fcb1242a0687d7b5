"""Folders and repositories of the Hugging Face Hub, with a stub of its client that keeps repositories in a folder."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from torch import nn

import probneural as pn
from probneural.distributions import Predictor
from probneural.distributions.latent import digest
from probneural.errors import ArgumentError, FileError, UnsupportedError
from probneural.operators import FNO, DeepONet
from tests.fitted_objects import fitted, setting

FILES = {"README.md", "config.json", "model.safetensors"}
CALIBRATED = "calibrated in one call"


class Hub:
    """A stub of huggingface_hub: commits are folders, `ROOT/user/name/revision`."""

    def __init__(self, root: Path) -> None:
        self.root, self.calls = root, []
        self.HfApi = lambda token=None: self

    def create_repo(self, **options: Any) -> SimpleNamespace:
        self.calls.append(("create_repo", options))
        if not options["repo_id"].startswith("user/"):
            raise ValueError(f"{options['repo_id']} is no repository")
        return SimpleNamespace(repo_id=options["repo_id"])

    def upload_folder(self, *, repo_id: str, folder_path: str, revision: str | None = None, **options: Any) -> str:
        self.calls.append(("upload_folder", {"repo_id": repo_id, "folder_path": folder_path, "revision": revision, **options}))
        shutil.copytree(folder_path, self.root / repo_id / (revision or "main"))
        return f"https://huggingface.co/{repo_id}/commit/1"

    def hf_hub_download(self, **options: Any) -> str:
        self.calls.append(("hf_hub_download", options))
        path = self.root / options["repo_id"] / (options["revision"] or "main") / options["filename"]
        if not path.is_file():
            raise FileNotFoundError(f"404 for {path}")
        return str(path)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hub:
    stub = Hub(tmp_path / "hub")
    monkeypatch.setitem(sys.modules, "huggingface_hub", stub)
    return stub


@cache
def operator() -> FNO:
    """A trained operator whose channels have units."""
    operator = FNO(1, 1, modes=(4,), periodic=False, width=6, depth=1, projection=8, lifting=5, mixing=3, seed=0)
    pairs = pn.problems.Antiderivative().sample(12, resolution=65, seed=0)
    inputs, outputs = (
        pn.Field(side.values, side.grid, units=(unit,)) for side, unit in ((pairs.inputs, "K"), (pairs.outputs, "a|b"))
    )
    pn.fit(operator, pn.FieldPairs(inputs, outputs), epochs=1, show_progress=False)
    return operator.eval()


def card(folder: Path) -> tuple[dict[str, Any], str]:
    """Metadata and text of a model card, also as the Hub's own client reads it."""
    content = (folder / "README.md").read_text(encoding="utf-8")
    _, header, text = content.split("---\n", 2)
    return yaml.safe_load(header), text


def test_an_operator_in_a_folder(tmp_path: Path) -> None:
    operator().save_pretrained(
        tmp_path / "new" / "model", model_card_kwargs={"license": 'mit "x"', "training": "60 epochs, $cost"}
    )
    folder = tmp_path / "new" / "model"
    assert {path.name for path in folder.iterdir()} == FILES
    loaded, inputs = FNO.from_pretrained(folder), torch.randn(2, 1, 65, generator=torch.Generator().manual_seed(0))
    assert torch.equal(loaded(inputs), operator()(inputs))
    assert torch.equal(pn.load(folder / "model.safetensors")(inputs), loaded(inputs))
    assert loaded.configuration() == operator().configuration()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["arguments"] == {**operator().configuration(), "modes": [4], "periodic": [False]}
    assert (config["library_name"], config["class"]) == ("probneural", "FNO")
    header, text = card(folder)
    assert (header["library_name"], header["license"]) == ("probneural", 'mit "x"')
    assert {"neural-operator", "uncertainty-quantification"} <= {*header["tags"]}
    units, call = "11 inputs, outputs on 65 points, units K → a|b", 'pn.operators.FNO.from_pretrained("model")'
    fingerprint = f"`{digest(operator().trained_on.row_keys)}`"
    assert all(part in text for part in ("60 epochs, $cost\n", units, fingerprint, "Not calibrated.", call))


def test_a_calibrated_predictor_in_a_repository(hub: Hub, tmp_path: Path) -> None:
    predictor, inputs = fitted(CALIBRATED), setting()[2][:4].inputs
    options = {"revision": "v1", "token": "t", "private": True, "commit_message": "first"}
    url = predictor.push_to_hub("user/model", **options, model_card_kwargs={"selection": "Least CRPS of 3 seeds."})
    assert url == "https://huggingface.co/user/model/commit/1"
    loaded = Predictor.from_pretrained("user/model", revision="v1", token="t")
    assert all(torch.equal(getattr(loaded(inputs), name), getattr(predictor(inputs), name)) for name in ("mean", "variance"))
    assert torch.equal(loaded.band(inputs).upper, predictor.band(inputs).upper)
    assert type(predictor).from_pretrained("user/model", revision="v1").report == predictor.report
    header, text = card(hub.root / "user" / "model" / "v1")
    call = 'pn.distributions.Predictor.from_pretrained("user/model")'
    assert header["license"] == "unknown"
    assert all(part in text for part in (str(predictor.report), "Least CRPS of 3 seeds.", call))
    created, uploaded = (options for _, options in hub.calls[:2])
    assert created == {"repo_id": "user/model", "private": True, "exist_ok": True}
    assert (uploaded["commit_message"], Path(uploaded["folder_path"]).exists()) == ("first", False)


def test_the_client_has_these_functions(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Calls fit the client's signatures, and its `ModelCard` reads the card, where it is installed."""
    operator().push_to_hub("user/model")
    FNO.from_pretrained("user/model")
    monkeypatch.undo()
    client = pytest.importorskip("huggingface_hub")
    for name, options in hub.calls:
        function = client.hf_hub_download if name == "hf_hub_download" else getattr(client.HfApi(token="t"), name)
        inspect.signature(function).bind(**options)
    read = client.ModelCard.load(hub.root / "user" / "model" / "main" / "README.md")
    assert (read.data.library_name, "neural-operator" in read.data.tags) == ("probneural", True)
    for missing in ("../no repository", str(tmp_path / "missing")):
        with pytest.raises(FileError, match=r"a folder or model\.safetensors"):
            FNO.from_pretrained(missing)


def test_models_of_another_class_and_damaged_files_are_refused(hub: Hub, tmp_path: Path) -> None:
    fitted(CALIBRATED).save_pretrained(tmp_path)
    with pytest.raises(FileError, match="expected a FNO; got CalibratedPredictor"):
        FNO.from_pretrained(tmp_path)
    operator().save_pretrained(tmp_path)
    with pytest.raises(FileError, match="expected a DeepONet; got FNO"):
        DeepONet.from_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(FileError):
        FNO.from_pretrained(tmp_path)
    path.unlink()
    for missing in (tmp_path, "user/other"):
        with pytest.raises(FileError):
            FNO.from_pretrained(missing)


def test_modules_of_other_libraries_are_needed_again(tmp_path: Path) -> None:
    pairs = setting()[1]
    module = nn.Sequential(nn.Conv1d(1, 4, 1), nn.Tanh(), nn.Conv1d(4, 1, 1)).double()
    predictor = pn.heads.LastLayerLaplace(noise=0.01).fit(module, pairs[:20])
    predictor.save_pretrained(tmp_path)
    assert ", operator=module)" in card(tmp_path)[1]
    with pytest.raises(ArgumentError, match="operator="):
        Predictor.from_pretrained(tmp_path)
    loaded = Predictor.from_pretrained(tmp_path, operator=module)
    assert torch.equal(loaded(pairs.inputs).mean, predictor(pairs.inputs).mean)


def test_nothing_is_written_in_part(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    operator().save_pretrained(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ArgumentError, match="license, training, selection"):
        fitted(CALIBRATED).save_pretrained(tmp_path, model_card_kwargs={"licence": "mit"})

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(os, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fitted(CALIBRATED).save_pretrained(tmp_path)
        with pytest.raises(KeyboardInterrupt):
            operator().push_to_hub("user/model")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert not hub.calls
    with pytest.raises(ValueError, match="no repository"):  # the client's own error
        operator().push_to_hub("no-user")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UnsupportedError, match="pip install huggingface_hub"):
        operator().push_to_hub("user/model")
    with pytest.raises(UnsupportedError, match="which is no folder"):
        FNO.from_pretrained("user/model")
