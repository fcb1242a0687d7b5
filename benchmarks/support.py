"""Support of curvature products and posteriors by network, in this library and in installed others."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import probneural as pn
from probneural.curvature import ParameterVector
from probneural.curvature.problem import CurvatureProblem, QuadratureGaussian
from probneural.randomness import seeded, stream


class ComplexFNO(nn.Module):
    """A Fourier layer with complex weights, as in most libraries, between two 1x1 convolutions."""

    def __init__(self, modes: int = 6, width: int = 8) -> None:
        super().__init__()
        self.lift = nn.Conv1d(1, width, 1)
        self.spectral = nn.Parameter(0.1 * torch.randn(width, width, modes, dtype=torch.complex64))
        self.readout = nn.Conv1d(width, 1, 1)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        hidden = self.lift(values)
        spectrum = torch.fft.rfft(hidden, norm="forward")[..., : self.spectral.shape[-1]]
        mixed = torch.einsum("nik,iok->nok", spectrum, self.spectral)
        return self.readout(torch.tanh(torch.fft.irfft(mixed, n=values.shape[-1], norm="forward") + hidden))


@seeded(0, "foreign weights")
def networks() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    """Small networks with the shapes of their grids, by name."""
    found: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
        "FNO 1-D, real pairs": (pn.operators.FNO(1, 1, modes=(6,), width=8, depth=2, projection=16), (32,)),
        "FNO 2-D, real pairs": (pn.operators.FNO(1, 1, modes=(3, 3), width=6, depth=2, projection=16), (12, 12)),
        "Fourier layer, complex": (ComplexFNO(), (32,)),
        "CNN": (
            nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.Tanh(), nn.Conv2d(6, 6, 1), nn.Tanh(), nn.Conv2d(6, 1, 1)),
            (8, 8),
        ),
    }
    try:
        from neuralop.models import FNO
    except ImportError:
        return found
    found["neuraloperator FNO 1-D"] = (
        FNO(n_modes=(8,), in_channels=1, out_channels=1, hidden_channels=8, n_layers=2, positional_embedding=None),
        (32,),
    )
    return found


def run() -> list[dict[str, Any]]:
    """One row per method, one column per network: yes, or the error."""
    columns = networks()
    outcomes: dict[str, dict[str, str]] = {}
    for network, (module, shape) in columns.items():
        generator = stream(0, "tried inputs")
        grid = pn.Grid.uniform(shape)
        inputs = pn.Field(torch.randn(3, 1, *shape, generator=generator), grid)
        outputs = pn.Field(torch.randn(3, 1, *shape, generator=generator), grid)
        data = pn.FieldPairs(inputs, outputs)
        for method, attempt in (_ours(module.eval(), data) | _peers(module, data)).items():
            outcomes.setdefault(method, {})[network] = _outcome(attempt)
    return [{"method": method, **{network: row.get(network, "-") for network in columns}} for method, row in outcomes.items()]


def _outcome(attempt: Callable[[], torch.Tensor | None]) -> str:
    """Whether a method returns finite real numbers."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = attempt()
    except Exception as error:  # noqa: BLE001 (whatever another library raises is the result)
        return type(error).__name__
    if result is not None and result.is_complex():
        return "complex result"
    return "yes" if result is None or bool(torch.isfinite(result).all()) else "not finite"


def _ours(module: nn.Module, data: pn.FieldPairs) -> dict[str, Callable[[], torch.Tensor | None]]:
    from probneural.curvature.products import linear_operators

    layout = ParameterVector.of(module)
    likelihood = QuadratureGaussian.of(data.outputs.grid, torch.ones(1))
    problem = CurvatureProblem(module, data.inputs, layout=layout, likelihood=likelihood, targets=data.outputs)
    vector = torch.ones(layout.size, 2)
    given = {"noise": 0.1, "prior_precision": 1.0}

    def deviation(head: Any) -> torch.Tensor:
        result: torch.Tensor = head.fit(module, data)(data.inputs).standard_deviation
        return result

    return {
        "probneural GGN product": lambda: linear_operators.GaussNewton(problem.parameters, problem) @ vector,
        "probneural Hessian product": lambda: linear_operators.Hessian(problem.parameters, problem) @ vector,
        "probneural last layer": lambda: deviation(pn.heads.LastLayerLaplace(**given)),
        "probneural full": lambda: deviation(pn.heads.Laplace(structure="full", **given)),
        "probneural low rank": lambda: deviation(pn.heads.Laplace(pn.heads.LowRank(rank=20), **given)),
        "probneural kronecker": lambda: deviation(pn.heads.Laplace(structure="kronecker", **given)),
        "probneural diagonal": lambda: deviation(pn.heads.Laplace(structure="diagonal", **given)),
    }


def _peers(module: nn.Module, data: pn.FieldPairs) -> dict[str, Callable[[], torch.Tensor | None]]:
    attempts: dict[str, Callable[[], torch.Tensor | None]] = {}
    inputs, targets = data.inputs.values, data.outputs.values
    try:
        import curvlinops
    except ImportError:
        pass
    else:
        kinds = {
            "GGN product": curvlinops.GGNLinearOperator,
            "Hessian product": curvlinops.HessianLinearOperator,
            "KFAC": curvlinops.KFACLinearOperator,
        }
        for name, kind in kinds.items():

            def product(kind: Any = kind) -> torch.Tensor:
                parameters = [part for part in module.parameters() if part.requires_grad]
                loss = nn.MSELoss()
                matrix = kind(module, loss, parameters, [(inputs, targets)], check_deterministic=False)
                result: torch.Tensor = matrix @ torch.ones(matrix.shape[1], 2)
                return result

            attempts[f"curvlinops {name}"] = product
    try:
        from laplace import Laplace
    except ImportError:
        pass
    else:
        for subset, structure in (("all", "diag"), ("all", "kron"), ("all", "full"), ("last_layer", "full")):

            def variance(subset: str = subset, structure: str = structure) -> torch.Tensor:
                from torch.utils.data import DataLoader, TensorDataset

                flat = nn.Sequential(module, nn.Flatten())
                posterior = Laplace(flat, "regression", subset_of_weights=subset, hessian_structure=structure)
                posterior.fit(DataLoader(TensorDataset(inputs, targets.flatten(1)), batch_size=3))
                result: torch.Tensor = posterior(inputs)[1]
                return result

            attempts[f"laplace-torch {subset}, {structure}"] = variance
    try:
        import backpack
        from backpack.extensions import DiagGGNExact
    except ImportError:
        pass
    else:

        def diagonal() -> torch.Tensor:
            import copy

            own = copy.deepcopy(module)
            layers = [*own.children()] if isinstance(own, nn.Sequential) else [own]
            extended = backpack.extend(nn.Sequential(*layers, nn.Flatten()))
            loss = backpack.extend(nn.MSELoss())(extended(inputs), targets.flatten(1))
            with backpack.backpack(DiagGGNExact()):
                loss.backward()
            return torch.cat([part.diag_ggn_exact.flatten() for part in extended.parameters()])

        attempts["BackPACK GGN diagonal"] = diagonal
    return attempts
