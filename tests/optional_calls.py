"""A call of every optional library. As a program: make all of them without the libraries, and print the errors as JSON.

`python tests/optional_calls.py matplotlib xarray` blocks the named modules first; where none is installed, no name is needed.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

import torch
from torch import nn

import probneural as pn
from probneural.training.lightning import lightning_module

GIVEN: dict[str, Any] = {"noise": 1e-2, "prior_precision": 1.0}


def calls() -> dict[str, tuple[str, Callable[[], object]]]:
    """By name: the extra, and a call that needs it. Files are written to the working directory."""
    Path("a.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    Path("a.nc").write_bytes(b"CDF\x01" + bytes(100))
    Path("a.vtu").write_text("<VTKFile/>")
    Path("a.zarr").mkdir()
    Path("a.zarr/.zgroup").write_text('{"zarr_format": 2}')
    step = pn.problems.Heat(dimension=1, time=0.1, random_field=pn.problems.GaussianRandomField(1, 2), design_dim=2)
    pairs, truth = step.sample(8, resolution=8, seed=0), step.trajectory(2, times=[0.1, 0.2], resolution=8, seed=0)
    model = nn.Sequential(nn.Conv1d(1, 2, 1), nn.GELU(), nn.Conv1d(2, 1, 1))
    predictor = pn.heads.LastLayerLaplace(**GIVEN).fit(model, pairs)
    forecast = predictor.rollout(truth.start, steps=2, members=2, seed=0)
    problem = pn.inverse.InverseProblem(
        predictor,
        prior=torch.distributions.Normal(0.0, 1.0),
        encode=lambda theta: pn.Field(theta[..., None].float().expand(-1, 1, 8), pairs.inputs.grid),
        functional=pn.functionals.sensors(pairs.outputs.grid, [[0.25]]),
        data=[[0.0]],
        noise=1e-2,
    )
    chain = problem.sample("pcn", draws=40, warm_up=5, show_progress=False)
    laplace = pn.heads.Laplace(structure="diagonal", **GIVEN)

    def opened(path: str) -> object:
        return pn.data.open(path, inputs=["a"], outputs=["u"])

    return {
        "plots": ("plots", lambda: pn.plots),
        "runs": ("cli", lambda: pn.runs),
        "HDF5 files": ("data", lambda: opened("a.h5")),
        "NetCDF files": ("data", lambda: opened("a.nc")),
        "zarr stores": ("data", lambda: opened("a.zarr")),
        "writing trajectories": ("data", lambda: forecast.to_zarr("forecast.zarr")),
        "push_to_hub": ("hub", lambda: predictor.push_to_hub("a/b")),
        "mesh files": ("mesh", lambda: opened("a.vtu")),
        "to_meshio": ("mesh", lambda: pn.Field(torch.ones(1, 1, 1), pn.Grid.scattered([[0.0]], [1.0])).to_meshio("u.vtu")),
        "from_xarray": ("xarray", lambda: pn.FieldPairs.from_xarray(object(), object(), periodic=True)),
        "field": ("xarray", pairs.inputs.to_xarray),
        "pairs": ("xarray", pairs.to_xarray),
        "distribution": ("xarray", forecast.at(1).to_xarray),
        "scores": ("xarray", pn.metrics.score_by_lead(forecast, truth).to_xarray),
        "BayesianOperator": ("pyro", lambda: pn.heads.BayesianOperator(laplace=laplace).fit(model, pairs)),
        "NUTS": ("pyro", lambda: problem.sample("nuts", draws=8, show_progress=False)),
        "r_hat": ("pyro", lambda: chain.r_hat),
        "to_arviz": ("arviz", chain.to_arviz),
        "MethodOfLines": ("ode", lambda: pn.problems.MethodOfLines(lambda time, u, grid: -u).sample(1, resolution=64, seed=0)),
        "to_onnx": ("onnx", lambda: pn.export.to_onnx(model, "a.onnx", example=pairs.inputs)),
        "TensorBoardLog": ("logging", lambda: pn.training.TensorBoardLog("runs")),
        "WandbLog": ("logging", lambda: pn.training.WandbLog("a")),
        "MLflowLog": ("logging", lambda: pn.training.MLflowLog("a")),
        "lightning_module": ("lightning", lambda: lightning_module(model)),
    }


def errors() -> dict[str, list[str]]:
    """By name of a call: the extra, the error's class, and its message."""
    messages = {}
    for name, (extra, call) in calls().items():
        try:
            call()
        except Exception as error:  # noqa: BLE001 (its class is what the tests look at)
            messages[name] = [extra, type(error).__name__, str(error)]
        else:
            messages[name] = [extra, "no error", ""]
    return messages


if __name__ == "__main__":
    sys.modules |= dict.fromkeys(sys.argv[1:])  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        sys.stdout.write(json.dumps(errors()))
