"""Good arguments of every public callable, by the name of the parameter, for a sweep that spoils one of them at a time."""

from __future__ import annotations

import inspect
import re
import tempfile
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

import probneural as pn
from probneural import (
    active,
    calibration,
    curvature,
    distributions,
    forecasts,
    heads,
    inverse,
    metrics,
    operators,
    physics,
    plots,
    problems,
    runs,
    training,
)
from probneural.calibration.bands.conformal import Band, BandField, TrajectoryBand
from probneural.calibration.novelty.detector import NoveltyDetector
from probneural.calibration.variance.by_lead import LeadScaling, ScaledForecast
from probneural.calibration.variance.scaled_predictor import ScaledPredictor
from probneural.distributions import DenseRoot, MixtureField, ScaleMixtureField
from probneural.distributions.forecasts.trajectory import Trajectory
from probneural.distributions.intervals import Interval
from probneural.distributions.predictors.base import FunctionDraw
from probneural.distributions.predictors.mixture import MixturePredictor
from probneural.errors import ProbneuralError
from probneural.fields import Field
from probneural.forecasts.analysis import EnsembleAnalysis
from probneural.forecasts.trajectories import GaussianTrajectory
from probneural.functionals.regions import Maximum
from probneural.heads.in_context import InContextPredictor
from probneural.heads.kernel.kernel_operator import KernelPredictor
from probneural.heads.laplace.laplace import LaplacePredictor
from probneural.heads.last_layer.laplace import LastLayerPredictor
from probneural.metrics.lead_table import LeadScores
from probneural.operators.layers import PointwiseLinear, SpectralConv
from tests.autoregression import forecast_and_truth
from tests.bad_input import world
from tests.bad_input.world import GRID, halve, normal
from tests.operators.test_neuraloperator import reference
from tests.test_public_api import layers


class Anything:
    """Made of whatever it is given."""

    def __init__(self, *args: object, **kwargs: object) -> None: ...


BAD: dict[str, Callable[[], Any]] = {
    "object": object,
    "None": lambda: None,
    "text": lambda: "no such word",
    "True": lambda: True,
    "-1": lambda: -1,
    "1.5": lambda: 1.5,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "1j": lambda: 1j,
    "empty": list,
    "objects": lambda: [object()],
    "mapping": lambda: {"a": object()},
    "texts": lambda: np.array(["a"]),
    "nan tensor": lambda: torch.tensor([float("nan")]),
    "complex": lambda: torch.ones(2, 3, dtype=torch.complex64),
    "integers": lambda: torch.ones(2, 3, dtype=torch.int64),
    "function": lambda: lambda *args, **kwargs: None,
    "class": lambda: Anything,
    "field": world.truth,
    "pairs": world.pairs,
    "predictor": world.build_predictor,
    "distribution": world.gaussian,
    "loader": lambda: DataLoader(TensorDataset(normal(4, 1, 16), normal(4, 1, 16))),
}
"""Arguments of a wrong kind; those that an annotation allows have to be taken, or to get a typed error."""


@cache
def forecast() -> Any:
    """Members by lead, and the truth."""
    return forecast_and_truth(6, steps=3, members=5)


@cache
def leads() -> Any:
    return metrics.score_by_lead(*forecast())


@cache
def trajectories() -> pn.FieldTrajectories:
    states = normal(4, 4, 1, 16, seed=3)
    return pn.FieldTrajectories(Field(states[:, 0], GRID), states[:, 1:], times=torch.arange(1.0, 4.0).double())


def held_out(count: int = 10) -> pn.FieldPairs:
    return world.pairs(count, seed=3)


def folder() -> str:
    return tempfile.mkdtemp()


@cache
def dataset() -> Any:
    return held_out().to_xarray()


@cache
def novelty() -> Any:
    return calibration.Novelty().fit(world.build_predictor(), held_out(40))


@cache
def rolled() -> Any:
    return world.build_predictor().rollout(world.truth(), steps=2, members=3, seed=0, show_progress=False)


@cache
def propagated() -> Any:
    return forecasts.propagate(world.build_predictor(), world.truth(), steps=2)


@cache
def history() -> Any:
    return pn.fit(world.fno(), world.pairs(), epochs=1, show_progress=False)


def observation() -> Any:
    return forecasts.Observation(world.probe(), torch.zeros(3, 1, 2), lead=1, noise=0.1)


def muon() -> Any:
    return training.Muon([torch.nn.Parameter(torch.ones(3, 2))])


def enkf() -> Any:
    return forecasts.EnsembleKalmanFilter(members=3)


def layout() -> Any:
    return curvature.ParameterVector.of(world.trained(), ["readout"])


def in_context() -> Any:
    return operators.InContextOperator(1, 1, modes=(3,), width=4, depth=1, seed=0)


def readout() -> torch.Tensor:
    return normal(layout().size)


def problem() -> Any:
    data, likelihood = world.pairs(), curvature.QuadratureGaussian.of(GRID, torch.ones(1))
    operator = world.trained().eval()
    return curvature.CurvatureProblem(operator, data.inputs, layout=layout(), likelihood=likelihood, targets=data.outputs)


@cache
def inversion() -> inverse.InverseProblem:
    prior = [torch.distributions.Normal(0.0, 1.0)] * 2
    return inverse.InverseProblem(
        world.build_predictor(), prior=prior, encode=plane, functional=world.probe(), data=torch.zeros(2), noise=0.1
    )


def plane(theta: torch.Tensor) -> Field:
    """Fields of two parameters."""
    angle = 2 * torch.pi * GRID.points[:, 0].to(theta)
    return Field((theta @ torch.stack([angle.sin(), angle.cos()]))[:, None].float(), GRID)


GOOD: dict[str, Callable[[], Any]] = {
    "values": lambda: world.truth().values,
    "scale": lambda: torch.ones(1),
    "grid": lambda: GRID,
    "in_grid": lambda: GRID,
    "out_grid": lambda: GRID,
    "sensors": lambda: GRID,
    "inputs": lambda: world.pairs().inputs,
    "outputs": lambda: world.pairs().outputs,
    "operator": world.trained,
    "predictor": world.build_predictor,
    "inner": world.build_predictor,
    "functional": world.probe,
    "function": world.probe,
    "functionals": lambda: [world.probe()],
    "seed": lambda: 0,
    "seeds": lambda: [0, 1],
    "truth": world.truth,
    "u": world.gaussian,
    "prediction": world.truth,
    "predictions": lambda: {"a": world.gaussian()},
    "comparison": world.comparison,
    "path": lambda: Path(folder()) / "file",
    "folder": folder,
    "save_directory": folder,
    "index": lambda: [0],
    "data": world.pairs,
    "train": world.pairs,
    "pairs": held_out,
    "calibration": held_out,
    "held_out": lambda: held_out(20),
    "noise": lambda: 0.1,
    "in_channels": lambda: 1,
    "out_channels": lambda: 1,
    "modes": lambda: (3,),
    "factors": lambda: torch.ones(1),
    "target": lambda: torch.float64,
    "device": lambda: "cpu",
    "parts": lambda: [held_out().inputs],
    "start": world.truth,
    "steps": lambda: 2,
    "count": lambda: 2,
    "pool": lambda: world.pairs().inputs,
    "X": lambda: world.designs(3),
    "Y": lambda: normal(3, 2),
    "model": world.model,
    "lead": lambda: 1,
    "forecast": lambda: forecast()[0],
    "scores": lambda: {"a": leads()},
    "members": lambda: 2,
    "n": lambda: 2,
    "resolution": lambda: 16,
    "times": lambda: [0.1],
    "q": lambda: 0.5,
    "shape": lambda: 8,
    "names": lambda: ["x"],
    "store": lambda: active.ResultStore(folder()),
    "simulator": world.burgers,
    "head": lambda: pn.heads.LastLayerLaplace(),
    "acquisition": active.RandomSelection,
    "dimension": lambda: 1,
    "history": history,
    "histories": dict,
    "predictors": lambda: [world.build_predictor(), world.ensemble()],
    "predicted": lambda: normal(3, 1, 16),
    "parameters": lambda: [torch.nn.Parameter(torch.ones(3, 2))],
    "states": lambda: Field(normal(9, 1, 16), GRID),
    "step": world.build_predictor,
    "observations": lambda: [observation()],
    "initial": lambda: forecasts.climatology(Field(normal(9, 1, 16), GRID)),
    "labels": lambda: ["a", "b"],
    "probabilities": lambda: torch.full((2, 7), 0.5).double(),
    "level": lambda: 0.9,
    "config": runs.Config,
    "figure": lambda: plots.field(world.gaussian()),
    "bands": lambda: world.band()(world.pairs().inputs),
    "example": lambda: world.pairs().inputs[:1],
    "thing": world.trained,
    "design": lambda: world.designs(1)[0].float(),
    "direction": lambda: world.pairs().inputs,
    "weights": lambda: None,
    "latent": lambda: world.gaussian().latent,
    "other": world.gaussian,
    "observed": lambda: torch.ones(16, dtype=torch.bool),
    "locations": lambda: [[0.25]],
    "residual": lambda: lambda u: u.flatten(1)[:, :1],
    "epoch": lambda: 0,
    "epochs": lambda: 2,
    "points": lambda: {"a": (1.0, 2.0)},
    "shares": lambda: rolled().variance_shares(),
    "edges": lambda: [2],
    "samples": lambda: 2,
    "patience": lambda: 2,
    "output": lambda: Path(folder()) / "out.nc",
    "key": lambda: "0" * 40,
    "keys": list,
    "reason": lambda: "why",
    "seconds": lambda: 0.0,
    "name": lambda: "name",
    "value": lambda: 1,
    "idcs": lambda: [0],
    "sampler": lambda: None,
    "designs": lambda: world.designs(3),
    "distance": lambda: torch.ones(3),
    "coefficients": lambda: normal(2, 7).double(),
    "coordinates": lambda: [GRID.points[:, 0]],
    "factor": lambda: 2.0,
    "z": lambda: torch.ones(3).double(),
    "rate": lambda: lambda u: u,
    "watched": lambda: [1.0, 2.0],
    "layout": layout,
    "likelihood": lambda: curvature.QuadratureGaussian.of(GRID, torch.ones(1)),
    "problem": problem,
    "product": lambda: lambda rows: 2.0 * rows,
    "products": lambda: 4,
    "probes": lambda: 2,
    "size": lambda: 5,
    "vectors": lambda: normal(2, layout().size),
    "field": world.truth,
    "query": lambda: GRID,
}
"""Good values of parameters by name, unless `ARGUMENTS` has one for the callable."""

OWNERS: dict[type, Callable[[], Any]] = {
    Field: world.truth,
    pn.FieldPairs: world.pairs,
    pn.FieldTrajectories: trajectories,
    pn.Grid: lambda: pn.Grid.uniform((16,)),
    active.OperatorModel: world.model,
    active.OperatorDraws: lambda: active.OperatorDraws(world.model(), 2),
    active.ResultStore: lambda: active.ResultStore(folder()),
    active.RandomSelection: active.RandomSelection,
    active.Growth: active.Growth,
    Band: world.band,
    BandField: lambda: world.band()(world.pairs().inputs),
    calibration.HorizonBand: lambda: calibration.HorizonBand(level=0.5),
    TrajectoryBand: lambda: calibration.HorizonBand(level=0.5).fit(*forecast()),
    calibration.LeadScale: calibration.LeadScale,
    LeadScaling: lambda: calibration.LeadScale().fit(*forecast()),
    ScaledForecast: lambda: calibration.LeadScale().fit(*forecast())(forecast()[0]),
    calibration.Stacking: calibration.Stacking,
    calibration.Novelty: calibration.Novelty,
    NoveltyDetector: novelty,
    calibration.NoveltyScale: calibration.NoveltyScale,
    calibration.PointwiseBand: lambda: calibration.PointwiseBand(level=0.5, delta=0.5),
    calibration.SimultaneousBand: lambda: calibration.SimultaneousBand(level=0.5),
    calibration.ResidualBand: lambda: calibration.ResidualBand(lambda u, a, grid: u, level=0.5),
    calibration.ScaleMixture: lambda: calibration.ScaleMixture(draws=50),
    calibration.VarianceScale: calibration.VarianceScale,
    ScaledPredictor: world.scaled,
    distributions.EmpiricalField: world.empirical,
    distributions.GaussianField: world.gaussian,
    MixtureField: lambda: MixtureField([world.gaussian(), world.gaussian()]),
    ScaleMixtureField: lambda: ScaleMixtureField(world.gaussian(), torch.ones(2)),
    Interval: lambda: world.gaussian().interval(),
    MixturePredictor: world.ensemble,
    FunctionDraw: lambda: world.build_predictor().draw(0),
    Trajectory: rolled,
    forecasts.EnsembleKalmanFilter: enkf,
    forecasts.EnsembleKalmanSmoother: lambda: forecasts.EnsembleKalmanSmoother(members=3),
    EnsembleAnalysis: lambda: enkf().assimilate(world.build_predictor(), world.truth(), observations=[observation()], steps=2),
    GaussianTrajectory: propagated,
    pn.functionals.MatrixFunctional: world.probe,
    Maximum: lambda: pn.functionals.maximum(GRID),
    heads.LastLayerLaplace: heads.LastLayerLaplace,
    heads.Laplace: lambda: heads.Laplace("diagonal"),
    heads.DeepEnsemble: lambda: heads.DeepEnsemble(2, train=halve, show_progress=False),
    heads.InContext: heads.InContext,
    heads.KernelOperator: lambda: heads.KernelOperator(iterations=1),
    heads.LaplaceEnsemble: lambda: heads.LaplaceEnsemble(2, train=halve, show_progress=False),
    inverse.InverseProblem: inversion,
    inverse.InversePosterior: lambda: inversion().kalman(members=4),
    InContextPredictor: lambda: heads.InContext().fit(in_context(), world.pairs()),
    KernelPredictor: world.kernel,
    LaplacePredictor: world.laplace,
    LastLayerPredictor: world.build_predictor,
    LeadScores: leads,
    operators.FNO: world.trained,
    operators.DeepONet: lambda: operators.DeepONet(1, 1, sensors=GRID, basis=2),
    operators.LinearRegression: lambda: operators.LinearRegression.fitted(world.pairs()),
    operators.Rollout: lambda: operators.Rollout(world.fno(), 2),
    SpectralConv: lambda: SpectralConv(1, 1, modes=(3,)),
    PointwiseLinear: lambda: PointwiseLinear(1, 1),
    problems.Burgers: world.burgers,
    problems.Wave: lambda: WAVE,
    problems.GaussianRandomField: lambda: problems.GaussianRandomField(1, 3),
    problems.JoukowskiAirfoil: problems.JoukowskiAirfoil,
    problems.PoissonOnShapes: problems.PoissonOnShapes,
    problems.SphereHeat: problems.SphereHeat,
    problems.UniformParameters: lambda: problems.UniformParameters((0.0,), (1.0,)),
    problems.IndependentDistributions: lambda: problems.IndependentDistributions([problems.GaussianRandomField(1, 3)]),
    runs.Config: runs.Config,
    training.EarlyStopping: lambda: training.EarlyStopping(patience=2),
    training.Muon: muon,
    physics.Residual: lambda: physics.Residual(lambda u, a: u),
    training.RelativeL2: training.RelativeL2,
    training.WeightedSum: lambda: training.WeightedSum([(1.0, training.RelativeL2())]),
}


def of(**arguments: Any) -> dict[str, Callable[[], Any]]:
    """Arguments of one callable: a function makes one, unless `ready` holds the function."""
    return {
        name: value if callable(value) and not isinstance(value, torch.nn.Module) else lambda value=value: value
        for name, value in arguments.items()
    }


def line() -> pn.Grid:
    return forecast()[0].grid


WAVE = problems.Wave(random_field=problems.GaussianRandomField(1, 3), boundary="periodic")


def waves() -> Field:
    return WAVE.sample_inputs(2, resolution=16, seed=0)


def model_file() -> Path:
    path = Path(folder()) / "model"
    pn.save(world.trained(), path)
    return path


def data_file() -> Path:
    path = Path(folder()) / "pairs.nc"
    dataset().to_netcdf(path)
    return path


def config_file() -> Path:
    path = Path(folder()) / "run.toml"
    runs.write_config(runs.Config(), path)
    return path


BANDED = of(truth=lambda: world.pairs().outputs)
BY_LEAD = of(truth=lambda: forecast()[1])
CONDITIONED = of(values=lambda: torch.zeros(3, 1, 2), noise=0.1)
PREDICTED = of(inputs=world.truth, values=lambda: torch.zeros(3, 1, 2), noise=0.1)
LOSS = of(predicted=lambda: normal(3, 1, 16), target=lambda: normal(3, 1, 16, seed=1), inputs=world.truth)
SETS = of(predicted=lambda: normal(3, 2, 16), target=lambda: normal(3, 1, 16, seed=1))
QUIET = of(show_progress=False)
WHOLE = of(values=lambda: world.truth().values.numpy(), grid=lambda: GRID)
ARRAYS = of(inputs=lambda: np.zeros((4, 16)), outputs=lambda: np.zeros((4, 16)), grid=lambda: GRID)
ARGUMENTS: dict[str, dict[str, Callable[[], Any]]] = {
    "Field.cat": of(parts=lambda: [world.truth()]),
    "Field.from_numpy": WHOLE,
    "Field.from_xarray": of(array=lambda: world.truth().to_xarray()),
    "FieldPairs.cat": of(parts=lambda: [world.pairs()]),
    "FieldPairs.from_numpy": ARRAYS,
    "FieldPairs.from_parameters": of(parameters=lambda: np.zeros((4, 2)), outputs=lambda: np.zeros((4, 16)), grid=lambda: GRID),
    "FieldPairs.from_xarray": of(inputs=dataset),
    "FieldPairs.split": of(seed=0),
    "FieldTrajectories": of(values=lambda: normal(3, 1, 1, 16)),
    "FieldTrajectories.cat": of(parts=lambda: [trajectories()]),
    "Grid.has_points_of": of(other=lambda: GRID),
    "Grid.latlon": of(latitudes=lambda: [-10.0, 0.0, 10.0], longitudes=lambda: [0.0, 90.0, 180.0, 270.0]),
    "Grid.of_axes": of(axes=lambda: GRID.axes),
    "Grid.scattered": of(points=lambda: [[0.5]], weights=lambda: [1.0]),
    "WindowClock": of(states=lambda: [[0.0, 1.0]]),
    "fit": of(operator=world.fno, epochs=1, show_progress=False),
    "active.ActiveLearner": of(pool=lambda: world.pairs(20).inputs),
    "active.Growth.__call__": of(labels=4),
    "active.OperatorModel": of(encode=lambda: world.encode),
    "active.ResultStore.key": of(inputs=lambda: world.truth()[:1]),
    "active.ResultStore.add": of(inputs=lambda: world.truth()[:1], outputs=lambda: world.truth()[:1]),
    "active.ResultStore.fail": of(inputs=lambda: world.truth()[:1]),
    "active.ResultStore.save_tensors": of(tensors=lambda: {"a": torch.ones(1)}),
    "calibration.ResidualBand.fit": of(inputs=lambda: held_out().inputs),
    "calibration.BandField.contains": BANDED,
    "calibration.BandField.fraction_inside": BANDED,
    "calibration.BandField.inside": BANDED,
    "calibration.HorizonBand.fit": BY_LEAD,
    "calibration.LeadScale.fit": BY_LEAD,
    "calibration.Novelty.fit": of(calibration=lambda: held_out(40)),
    "calibration.NoveltyScale.fit": of(calibration=lambda: held_out(40), shifted=lambda: [world.pairs(10, seed=9)]),
    "calibration.TrajectoryBand.coverage": BY_LEAD,
    "data.from_arrays": ARRAYS,
    "inverse.place_sensors": of(outputs=world.gaussian),
    "physics.ByConstruction": of(conditions=physics.Dirichlet),
    "physics.Residual": of(equation=lambda: lambda u, a: u.values),
    "physics.Residual.correct": of(inputs=world.truth, modes=3),
    "physics.ResidualLoss": of(residual=lambda: physics.Residual(lambda u, a: u.values)),
    "physics.ResidualLoss.__call__": LOSS,
    "physics.ResidualLoss.terms": LOSS,
    "physics.curl": of(field=lambda: Field(normal(2, 2, 8, 8), pn.Grid.uniform((8, 8)))),
    "physics.derivatives_at": of(operator=lambda: operators.DeepONet(1, 1, sensors=GRID, basis=2)),
    "physics.partial": of(axis=0),
    "physics.time_derivative": of(field=lambda: Field(normal(2, 1, 8), pn.Grid.uniform(8, periodic=False).named(["t"]))),
    "curvature.CurvatureProblem": of(operator=lambda: world.trained().eval()),
    "curvature.ParameterVector": of(names=("weight",), shapes=lambda: (torch.Size([1, 4]),), is_complex=(False,)),
    "curvature.QuadratureGaussian": of(weights=lambda: torch.ones(1, 16).double()),
    "curvature.gauss_newton": of(jacobian=lambda: normal(3, 1, 16, 4), precision=lambda: torch.ones(1)),
    "curvature.vector_jacobian_product": of(parameters=readout, cotangents=lambda: normal(2, 12, 1, 16)),
    "curvature.top_eigenpairs": of(rank=2),
    "distributions.EmpiricalField.marginal": of(index=0),
    "distributions.EmpiricalField": of(samples=lambda: normal(4, 3, 1, 16)),
    "distributions.GaussianField": of(mean=lambda: normal(3, 1, 16), root=lambda: DenseRoot(normal(3, 1, 16, 5)), latent="xi"),
    "distributions.GaussianField.condition": CONDITIONED,
    "distributions.GaussianField.constrain": of(values=lambda: torch.zeros(3, 1, 2)),
    "distributions.GaussianField.marginal": of(index=0),
    "distributions.GaussianField.log_prob": of(noise=0.1),
    "distributions.MixtureField": of(components=lambda: [world.gaussian()]),
    "distributions.MixtureField.constrain": of(values=lambda: torch.zeros(3, 1, 2)),
    "distributions.MixtureField.log_prob": of(noise=0.1),
    "distributions.ScaleMixtureField": of(field=world.gaussian, scales=lambda: torch.ones(2)),
    "distributions.ScaleMixtureField.constrain": of(values=lambda: torch.zeros(3, 1, 2)),
    "distributions.ScaleMixtureField.marginal": of(index=0),
    "distributions.ScaleMixtureField.log_prob": of(noise=0.1),
    "forecasts.EnsembleKalmanFilter.assimilate": of(seed=0),
    "forecasts.GaussianTrajectory.condition": CONDITIONED,
    "forecasts.GaussianTrajectory.under": of(latent=lambda: propagated().at(1).latent),
    "forecasts.four_d_var": of(
        initial=lambda: forecasts.climatology(Field(normal(9, 1, 16), GRID)),
        observations=lambda: [forecasts.Observation(world.probe(), torch.zeros(1, 1, 2), lead=1, noise=0.1)],
        iterations=1,
    ),
    "forecasts.Observation": of(values=lambda: torch.zeros(3, 1, 2)),
    "FieldPairs.from_meshes": of(
        points=lambda: [torch.eye(3, 2)] * 2,
        inputs=lambda: [torch.ones(1, 3)] * 2,
        outputs=lambda: [torch.ones(1, 3)] * 2,
        cells=lambda: [torch.arange(3)[None]] * 2,
        weights=lambda: None,
    ),
    "Grid.batch": of(grids=lambda: [pn.Grid.scattered(torch.eye(3, 2), torch.ones(3))] * 2),
    "Grid.mesh": of(points=lambda: torch.eye(3, 2), cells=lambda: torch.arange(3)[None]),
    "functionals.boundary_integral": of(grid=lambda: pn.Grid.mesh(torch.eye(3, 2), torch.arange(3)[None]), where=lambda: None),
    "functionals.line_integral": of(path=lambda: [[0.1], [0.5]]),
    "heads.DeepEnsemble": of(train=lambda: halve),
    "metrics.rank_histogram": of(comparison=lambda: metrics.compare(world.empirical(), world.truth())),
    "metrics.score_by_lead": BY_LEAD,
    "metrics.score_pairs": of(data=held_out),
    "inverse.InverseProblem": of(
        prior=lambda: torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2)),
        encode=lambda: plane,
        data=lambda: torch.zeros(2),
    ),
    "inverse.InverseProblem.kalman": of(members=3),
    "inverse.InverseProblem.laplace": of(draws=4),
    "inverse.InverseProblem.sample": of(draws=4, warm_up=1, chains=1, show_progress=False),
    "inverse.InverseProblem.log_likelihood": of(theta=lambda: torch.zeros(3, 2)),
    "inverse.InverseProblem.log_posterior": of(theta=lambda: torch.zeros(3, 2)),
    "operators.PODDeepONet": of(basis=2),
    "operators.from_neuraloperator": of(state_dict=lambda: reference("FNO-1-D")[0]),
    "operators.DeepONet.evaluate_at": of(points=lambda: torch.full((3, 2, 1), 0.5)),
    "plots.fan": of(functional=lambda: pn.functionals.integral(line())),
    "plots.quantity": of(u=lambda: world.gaussian().apply(world.probe())),
    "plots.rank_histograms": of(scores=leads),
    "problems.GaussianRandomField": of(modes=3),
    "problems.GaussianRandomField.evaluate": of(coefficients=lambda: normal(2, 6).double()),
    "problems.GaussianRandomField.evaluate_on_axes": of(coefficients=lambda: normal(2, 6).double()),
    "problems.GaussianRandomField.quantiles": of(probabilities=lambda: torch.full((2, 6), 0.5).double()),
    "problems.JoukowskiAirfoil.on_surface": of(points=lambda: torch.rand(5, 2).double()),
    "problems.JoukowskiAirfoil.sample": of(resolution=60),
    "problems.PoissonOnShapes.sample": of(resolution=60),
    "problems.SphereHeat.grid": of(points=20),
    "problems.SphereHeat.sample": of(resolution=20),
    "problems.IndependentDistributions": of(parts=lambda: [problems.GaussianRandomField(1, 3)]),
    "problems.IndependentDistributions.split": of(coefficients=lambda: normal(2, 6).double()),
    "problems.IndependentDistributions.quantiles": of(probabilities=lambda: torch.full((2, 6), 0.5).double()),
    "problems.MethodOfLines": of(right_hand_side=lambda: lambda u, a, grid: u),
    "problems.UniformParameters": of(lower=lambda: (0.0,), upper=lambda: (1.0,)),
    "problems.UniformParameters.quantiles": of(probabilities=lambda: torch.full((2, 1), 0.5).double()),
    "problems.Wave.encode": of(design=lambda: torch.rand(2, 8)),
    "problems.Burgers.inputs": of(coefficients=lambda: normal(2, 6)),
    "problems.Wave.inputs": of(coefficients=lambda: normal(2, 12)),
    "problems.Wave.derivative": of(inputs=waves, direction=waves),
    "problems.Wave.solve": of(inputs=waves),
    "problems.dealias": of(u=lambda: normal(3, 1, 16)),
    "problems.spectral_derivative": of(u=lambda: normal(3, 1, 16)),
    "runs.Config.from_dict": of(values=dict),
    "runs.Config.differences": of(reference=runs.Config),
    "functionals.MatrixFunctional.adjoint": of(numbers=lambda: torch.ones(2)),
    "training.WandbLog": of(project="project", mode="disabled"),
    "training.WeightedSum": of(terms=lambda: [(1.0, training.RelativeL2())]),
    "training.WeightedSum.__call__": LOSS,
    "training.RelativeL2.__call__": LOSS,
    "training.relative_l2": LOSS,
    "load": of(path=model_file),
    "data.list_variables": of(path=data_file),
    "data.open": of(path=data_file, inputs=lambda: ["inputs"], outputs=lambda: ["outputs"]),
    "data.open_inputs": of(path=data_file, inputs=lambda: ["inputs"]),
    "runs.info": of(path=data_file),
    "runs.read_config": of(path=config_file),
    "heads.Laplace": of(structure="full", parameters=lambda: ["readout"], show_progress=False),
    "heads.InContext.fit": of(operator=in_context),
    "heads.InContextPredictor.condition": of(
        inputs=world.truth, values=lambda: torch.zeros(3, 1, 16), functional=lambda: pn.functionals.sensors(GRID, GRID.points)
    ),
    "heads.InContextPredictor.rollout": QUIET,
    "operators.context_tasks": of(family=lambda: lambda seed: world.burgers(), tasks=2, pairs=1),
    "heads.KernelOperator": of(iterations=1),
}
for _kind in ("fisher", "gauss_newton", "hessian", "jacobian"):
    ARGUMENTS[f"curvature.{_kind}_vector_product"] = of(parameters=readout)
for _owner in (
    "calibration.ScaledPredictor",
    "distributions.MixturePredictor",
    "heads.KernelPredictor",
    "heads.LaplacePredictor",
    "heads.LastLayerPredictor",
):
    ARGUMENTS[f"{_owner}.condition"] = PREDICTED
    ARGUMENTS[f"{_owner}.rollout"] = QUIET
SKIP = "|".join(
    (
        # expert layers, which take tensors of stated shapes
        r"curvature\.(\w+Weights|Kronecker\w+|Eigenpairs|Estimate|\w+Measure|\w+Rows|\w+Root|Linearisation|kronecker)",
        r"curvature\.(evaluate_at|row_squares_estimate)",
        r"operators\.(PointwiseLinear|SpectralConv)\.forward",
        # what calls return, fits make and files hold
        r"inverse\.InversePosterior(\.to_arviz)?|inverse\.InverseProblem\.(chunks|values|inputs_of|log_densities|moments)",
        r"data\.(StoredPairs|Trajectories)|distributions\.(\w*Root|Latent|PredictorTraits)|Grid|Grid\.select",
        r"functionals\.MatrixFunctional(\.select)?|problems\.StateDistribution|runs\.(?!init|info|read_config|write_config|Config\.).*",
        r"training\.(MLflowLog|Muon\.step|EarlyStopping\.\w+)",
        # what takes long, other libraries, or a state that the objects above do not have
        r"active\.(simulate|Optimizer)|metrics\.residual|export\..*|active\.OperatorModel\.fantasize|Grid\.on_sphere",
        r"(\w+\.)?\w*Field\.to_meshio|active\.ResultStore\.(inputs|pairs)|plots\.(active_learning|optimisation|snapshots)",
        r"distributions\.Mixture(Predictor\.(condition|with_predictors)|Field\.marginal)|heads\.(Deep|Laplace)Ensemble\.fit",
        r"heads\.(KernelPredictor\.centre|LaplacePredictor\.variance_bounds|BayesianOperator\.\w+)",
        r".*\.(push_to_hub|from_pretrained)",
    )
)
"""Public callables, as a pattern of whole names, that are not swept."""

MODULES = r"Module|Operator|Predictor"
TAKES: dict[str, str] = {
    "None": r"None|Mask|JSON",
    "text": r"\bstr\b|Path|Literal|JSON",
    "True": r"\bbool\b|Mask|Embedding|JSON|Numbers",
    "-1": r"\bint\b|\bfloat\b|Values|Tensor|ArrayLike|Rows|JSON",
    "1.5": r"\bfloat\b|Values|Tensor|ArrayLike|Parameter|Positive|NotNegative|JSON",
    "empty": r"Sequence|Iterable|Collection|tuple|list|Mapping|dict|ArrayLike|Tensor|Rows|JSON|Weights",
    "texts": r"(Sequence|Iterable|Collection)\[str|tuple\[str|ArrayLike",
    "integers": r"Tensor|ArrayLike|Rows",
    "nan tensor": r"Tensor|ArrayLike",
    "function": r"Callable|Equation|Values|Loss|Simulator|Residual|Train|Build|Reinitialise|Forcing|Make",
    "class": r"Callable|type|Equation|Values|Loss|Simulator|Residual|Train|Build|Reinitialise|Forcing|Make|Schedule",
    "field": r"\bField\b|FieldSource",
    "pairs": r"Pairs|Dataset",
    "predictor": r"Predictor|Callable|Equation|Values|Simulator|Module|Step|Train|Build|Reinitialise|Forcing|Loss|Make|Residual",
    "distribution": r"Distribution|GaussianField|Field\b",
}
"""Annotations that allow one of them, as patterns."""
TAKEN = {
    ("Grid.fill", "number"): {"True", "nan", "inf"},
    ("Grid.fill", "values"): {"complex"},
    ("heads.Laplace", "prior_precision"): {"inf"},  # no variance
    ("heads.LastLayerLaplace", "prior_precision"): {"inf"},
    ("active.RandomSelection.select", "predictor"): set(BAD),  # it asks none, as documented
}
"""Further ones that a callable takes."""


def allows(name: str, parameter: inspect.Parameter, bad: str) -> bool:
    """Whether a bad argument is none for this parameter."""
    annotation = str(parameter.annotation)
    if annotation in ("object", "Any", "<class 'inspect._empty'>") or bad in TAKEN.get((name, parameter.name), ()):
        return True
    return bad in TAKES and bool(re.search(TAKES[bad], annotation))


FITTED = (
    heads.LastLayerLaplace,
    heads.Laplace,
    heads.KernelOperator,
)
"""Heads whose constructor is swept together with `fit`."""


class Signature(NamedTuple):
    """A public callable: what makes it, and what has its parameters."""

    make: Callable[[], Any]
    function: Any


def signatures() -> Iterator[tuple[str, Signature]]:
    """Exported functions, constructors, and the public methods of classes that have an object in `OWNERS`, each once."""
    seen: set[int] = set()
    for module in layers():
        for name in module.__all__:
            thing = getattr(module, name)
            path = f"{module.__name__}.{name}".removeprefix("probneural.")
            if inspect.ismodule(thing) or id(thing) in seen or (inspect.isclass(thing) and issubclass(thing, Exception)):
                continue
            seen.add(id(thing))
            if inspect.isfunction(thing) or (inspect.isclass(thing) and not inspect.isabstract(thing)):
                yield path, Signature(lambda thing=thing: used(thing), thing)
            if thing in OWNERS:
                yield from methods(thing, path)
    for owner in OWNERS:  # classes of results are not exported
        if id(owner) not in seen:
            yield from methods(owner, f"{owner.__module__.split('.')[1]}.{owner.__name__}")


def methods(owner: type, path: str) -> Iterator[tuple[str, Signature]]:
    """The public methods of a class."""
    for attribute in sorted(dir(owner)):
        value = inspect.getattr_static(owner, attribute)
        inner = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        is_public = attribute == "__call__" or not attribute.startswith("_")
        if is_public and inspect.isfunction(inner) and inner.__module__.startswith("probneural"):
            yield f"{path}.{attribute}", Signature(partial(method, owner, attribute), inner)


def method(owner: type, attribute: str) -> Any:
    """A bound method of the object of a class."""
    return getattr(OWNERS[owner](), attribute)


def used(thing: Any) -> Any:
    """A callable; a head checks some settings when it is fitted."""
    return (lambda **given: thing(**given).fit(world.trained(), world.pairs())) if thing in FITTED else thing


def parameters(function: Any) -> list[inspect.Parameter]:
    """Parameters that can be named."""
    named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [
        one for one in inspect.signature(function).parameters.values() if one.kind in named and one.name not in ("self", "cls")
    ]


SIGNATURES = {name: one for name, one in signatures() if not re.fullmatch(SKIP, name) and parameters(one.function)}


def call(function: Any, given: dict[str, Any], declared: list[inspect.Parameter]) -> None:
    """Call a function, and begin what it returns if that is a generator."""
    first = [given.pop(one.name) for one in declared if one.kind is one.POSITIONAL_ONLY]
    result = function(*first, **given)
    if inspect.isgenerator(result):
        next(result, None)


def good(name: str, declared: list[inspect.Parameter]) -> dict[str, Any]:
    """Arguments that a callable takes."""
    own = ARGUMENTS.get(name, {})
    needed = [one.name for one in declared if one.name in own or one.default is one.empty]
    return {each: (own[each] if each in own else GOOD[each])() for each in needed}


def mistakes(make: Callable[[], Any], function: Any, *, name: str = "") -> Iterator[str]:
    """Bad arguments that are taken, or get an error that is not typed."""
    declared = parameters(function)
    call(make(), good(name, declared), declared)
    for parameter in declared:
        for bad, value in BAD.items():
            given = good(name, declared) | {parameter.name: value()}
            try:
                call(make(), given, declared)
            except ProbneuralError as error:
                if not (error.expected and error.got and error.remedy):
                    yield f"{parameter.name}={bad}: {error!r}"
            except Exception as error:  # noqa: BLE001 (which is what is looked for)
                yield f"{parameter.name}={bad}: {error!r}"
            else:
                if not allows(name, parameter, bad):
                    yield f"{parameter.name}={bad} is taken"
