"""The README's programs run, verbatim but for sizes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import probneural as pn
from probneural.arrays.reading import grid_attributes
from probneural.distributions.trajectory import Trajectory

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
(PROGRAM,) = (block for block in BLOCKS if "burgers = pn.problems.Burgers" in block)
"""What the README shows; a user who copies it must get what its comments promise."""
(FORECAST,) = (block for block in BLOCKS if "predictor.rollout(" in block)
OUTPUT = re.findall(r"```text\n(.*?)\n```", README.read_text(encoding="utf-8"), flags=re.DOTALL)[0]
"""What the README says that it prints."""


def numbers(printed: str) -> dict[str, float]:
    """The scores of a printed table by name, those that belong to the line above with its name."""
    found, above = {}, ""
    for line in printed.splitlines()[1:]:
        name, value = re.match(r"(.*?) {2,}(\S+)", line.strip()).groups()
        above = name if line[0] != " " else above
        found[name if line[0] != " " else f"{above}, {name}"] = float(value)
    return found


def test_shown_output_is_that_of_the_full_run() -> None:
    kept = json.loads((ROOT / "docs" / "gallery" / "outputs.json").read_text(encoding="utf-8"))["five_minutes"]
    assert kept["printed"] == OUTPUT


def test_program_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With fewer epochs and without the progress bar; what it leaves behind has the shapes that its comments promise."""
    monkeypatch.setenv("TQDM_DISABLE", "1")
    assert PROGRAM.count("epochs=50") == 1
    space: dict[str, object] = {}
    exec(compile(PROGRAM.replace("epochs=50", "epochs=2"), "the five-minute program", "exec"), space)
    check(space)
    assert list(numbers(capsys.readouterr().out)) == list(numbers(OUTPUT))


@pytest.mark.slow
def test_program_runs_with_a_head_whose_latent_belongs_to_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the guide to heads says: a head without a network, and `predictor.condition` for the two lines about the latent."""
    monkeypatch.setenv("TQDM_DISABLE", "1")
    changed = PROGRAM
    for shown, instead in {
        "LastLayerLaplace().fit(operator, train)": "KernelOperator(iterations=2).fit(None, train)",
        "epochs=50": "epochs=2",
        "predictor(test.inputs[:4]).condition(probe, probe(test.outputs.values[:4]), noise=1e-8)": (
            "predictor.condition(test.inputs[:4], probe, values=probe(test.outputs.values[:4]), noise=1e-8)"
        ),
        "u.under(measured.latent)": "measured(test.inputs)",
    }.items():
        assert changed.count(shown) == 1
        changed = changed.replace(shown, instead)
    space: dict[str, Any] = {}
    exec(compile(changed, "the five-minute program", "exec"), space)
    check(space | {"measured": space["measured"](space["test"].inputs[:4])})


SMALLER = {
    "epochs=50": "epochs=2",
    "width=32, depth=4": "width=8, depth=2",
    "trajectory(64, ": "trajectory(4, ",
    "resolution=128": "resolution=64",
    "members=32": "members=5",
}


def test_forecast_program_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a store of trajectories of its own, with sizes of a quick run."""
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("zarr")
    monkeypatch.setenv("TQDM_DISABLE", "1")
    monkeypatch.chdir(tmp_path)
    flow = pn.problems.Burgers(viscosity=0.1, time=0.1).trajectory(5, times=[0.1, 0.2, 0.3], resolution=64, seed=0)
    states = torch.stack([flow.at(lead).values[:, 0] for lead in range(4)], dim=1)
    coordinates = {"time": [0.0, 0.1, 0.2, 0.3], "x0": flow.grid.axes[0].coordinates.numpy()}
    array = xarray.DataArray(
        states.numpy(), dims=("sample", "time", "x0"), coords=coordinates, attrs=grid_attributes(flow.grid)
    )
    xarray.Dataset({"u": array}).to_zarr("flow.zarr", consolidated=False)
    for name in ("in", "out"):
        np.save(f"{name}.npy", np.zeros((3, 1, 8), np.float32))
    space: dict[str, Any] = {"pn": pn}
    space |= {f"numpy_memmap_{name}": np.load(f"{name}.npy", mmap_mode="r") for name in ("in", "out")}
    program = FORECAST
    for shown, instead in SMALLER.items():
        assert program.count(shown) == 1
        program = program.replace(shown, instead)
    exec(compile(program, "the forecast", "exec"), space)
    assert (len(space["maps"]), len(space["pairs"])) == (3, 15)
    forecast, truth = space["forecast"], space["truth"]
    assert isinstance(forecast, Trajectory)
    assert isinstance(forecast.at(5), pn.distributions.FieldDistribution)
    assert forecast.at(5).mean.shape == truth.at(5).values.shape == (4, 1, 64)
    assert (forecast.steps, forecast.members, forecast.ensemble.draws) == (20, 5, "trajectory")
    printed = capsys.readouterr().out
    assert "CRPS" in printed
    assert "20" in printed.splitlines()[0]


def check(space: dict[str, object]) -> None:
    get: Any = space.__getitem__
    test, u, v, w = get("test"), get("u"), get("v"), get("w")
    assert test.outputs.grid.shape == (512,)
    assert u.mean.shape == u.variance.shape == (64, 1, 512)
    assert u.mean.dtype == torch.float32
    assert bool((u.variance > 0).all())
    assert get("draws").shape == (8, 64, 1, 512)
    assert get("mass").mean.shape == get("mass").variance.shape == (64, 1, 1)
    total = get("total")
    scale = float(test.outputs.norm().max())
    assert float((total(v.mean) - total(test.outputs.values)).abs().max()) <= 1e-5 * scale
    drawn = v.rsample((3,), seed=0)
    assert float((total(drawn) - total(test.outputs.values)).abs().max()) <= 1e-5 * scale
    assert w.mean.shape == (64, 1, 512)
    assert float(w.variance.mean()) < float(u.variance.mean())
    measured = get("measured")
    probe = get("probe")
    assert float((probe(measured.mean) - probe(test.outputs.values[:4])).abs().max()) < 0.1 * scale
    assert isinstance(get("predictor"), pn.distributions.Predictor)
    assert get("history").epochs == 2
    band = get("band")(test.inputs)
    assert band.mean.shape == band.half_width.shape == u.mean.shape
    posterior = get("model").posterior(torch.full((4, 2, get("burgers").design_dim), 0.5, dtype=torch.double))
    assert posterior.mean.shape == (4, 2, 2)
    assert posterior.rsample(torch.Size([5])).shape == (5, 4, 2, 2)
