"""Numbers just outside the range of an argument, by the name of the callable in `signatures`: kinds are that sweep's."""

from __future__ import annotations

from math import inf, nan
from typing import Any

COUNT = (0, -1)
LEVEL = (0.0, 1.0, -0.9, 90)
POSITIVE = (0.0, -1.0)

RANGES: dict[str, dict[str, tuple[Any, ...]]] = {
    "fit": {"epochs": COUNT, "batch_size": COUNT, "learning_rate": POSITIVE, "seed": (-1,), "validation": (1.0, -0.1)},
    "training.Optimization": {
        "weight_decay": (-0.1,),
        "gradient_clip": POSITIVE,
        "accumulation": COUNT,
    },
    "training.EarlyStopping": {"patience": COUNT},
    "training.DataOptions": {"workers": (-1,), "prefetch": COUNT},
    "training.Checkpoint": {"steps": (0,), "seconds": (-1.0,)},
    "operators.FNO": {"in_channels": COUNT, "width": COUNT, "depth": COUNT, "modes": ((0,), (), (2, 2, 2, 2))},
    "operators.DeepONet": {"basis": (0,)},
    "heads.LastLayerLaplace": {"noise": POSITIVE, "prior_precision": POSITIVE, "effective_observations": POSITIVE},
    "heads.Laplace": {"noise": POSITIVE, "prior_precision": POSITIVE},
    "heads.LowRank": {"rank": COUNT},
    "heads.Kronecker": {"probes": (0,)},
    "heads.KernelOperator": {"input_components": (0,), "groups": (0,), "iterations": (0,)},
    "heads.DeepEnsemble": {"members": COUNT, "workers": (0,)},
    "heads.BayesianOperator": {"steps": (0,)},
    "inverse.InverseProblem": {"noise": (0.0, -1.0), "operator_draws": COUNT, "likelihood": ("sum",)},
    "inverse.InverseProblem.kalman": {"members": (0, 1), "seed": (-1,)},
    "inverse.InverseProblem.map": {"iterations": COUNT, "tolerance": (0.0, 1.0)},
    "inverse.InverseProblem.sample": {"method": ("gibbs",), "draws": COUNT, "chains": COUNT, "warm_up": COUNT, "seed": (-1,)},
    "inverse.InversePosterior.interval": {"level": LEVEL},
    "calibration.SimultaneousBand": {"level": LEVEL, "floor": (-0.1, 1.1)},
    "metrics.score": {"noise": (-1.0,), "level": LEVEL, "whole": COUNT},
    "metrics.coverage": {"level": LEVEL},
    "metrics.simultaneous_coverage": {"draws": (0,)},
    "metrics.energy_score": {"draws": (0, 1)},
    "plots.field": {"index": (3, -4), "channel": (1,), "level": (0.0, 1.0), "noise": (-1.0,)},
    "plots.quantity": {"channel": (1,), "level": (0.0, 90), "noise": (-1.0,)},
    "distributions.GaussianField.interval": {"level": LEVEL, "noise": (-1.0,)},
    "distributions.GaussianField.quantile": {"q": LEVEL, "noise": (-1.0,)},
    "distributions.GaussianField.condition": {"noise": (-1.0,)},
    "distributions.GaussianField.log_prob": {"noise": (-1.0, 0.0)},
    "distributions.GaussianField.apply_by_draws": {"draws": (0,), "seed": (-1,)},
    "distributions.GaussianField.constrain_residual": {"iterations": (0,), "tolerance": POSITIVE},
    "FieldPairs.split": {"count": (0, 12, -1)},
    "problems.AdvectionDiffusion": {
        "diffusivity": POSITIVE,
        "time": POSITIVE,
        "dimension": (0, 4),
        "velocity": ((1.0, 2.0), nan),
        "design_dim": (10**6,),
    },
    "problems.Antiderivative": {"equation": ("cubic",), "design_dim": (63,)},
    "problems.Burgers": {"viscosity": POSITIVE, "time": POSITIVE},
    "problems.Burgers.trajectory": {"times": ([], [0.0], [-0.1, 0.2], [0.2, 0.1], [0.1, 0.1], [nan])},
    "problems.GaussianRandomField": {
        "dimension": COUNT,
        "modes": COUNT,
        "sigma": (-1.0,),
        "tau": (0.0,),
        "alpha": (inf, nan),
        "boundary": ("robin",),
    },
    "problems.Heat": {"dimension": (0, 4), "diffusivity": POSITIVE, "time": POSITIVE, "boundary": ("neumann",)},
    "problems.JoukowskiAirfoil": {"largest_angle": (-0.1, 2.0), "thickness": (0.0, 0.5), "camber": (-0.1, 0.5)},
    "problems.PoissonOnShapes": {"degree": (-1,), "terms": (0,), "distortion": (-0.1, 1.0)},
    "problems.ShallowWater": {
        "time": POSITIVE,
        "rotation": (-1.0,),
        "gravity": (inf,),
        "depth": POSITIVE,
        "design_dim": (865,),
    },
    "problems.SphereHeat": {"diffusivity": (-0.1,), "time": (-1.0,), "rotation": (inf,), "degree": (0,)},
    "problems.TimeIntegrator": {"rtol": POSITIVE, "atol": POSITIVE, "max_steps": (0,), "method": ("euler",)},
    "problems.Wave": {"speed": POSITIVE, "time": POSITIVE},
    "training.Unroll": {"steps": COUNT, "history": COUNT, "pushforward": (1,)},
    "problems.Burgers.sample": {"n": COUNT},
    "active.OperatorDraws": {"count": (0,)},
    "active.RandomSelection.select": {"count": (*COUNT, 13)},
    "active.StochasticSelection": {"power": (-1.0,)},
    "active.Growth": {"factor": (1.0, 0.5)},
    "active.LearningPlan": {"initial": (1,), "batch": (0,), "seed": (-1,)},
    "active.SimulationOptions": {"attempts": (0,), "timeout": POSITIVE},
}
