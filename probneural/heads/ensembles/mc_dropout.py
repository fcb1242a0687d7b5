"""Monte Carlo dropout: the operators that dropout trained, each under one mask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from probneural.checks import assign, check_integer, check_module
from probneural.contexts import undisturbed
from probneural.curvature import ParameterVector
from probneural.heads.ensembles.masked_operator import MaskedOperator, dropout_layers, feature_shapes
from probneural.heads.ensembles.members import copied_operator, predictor_of_members, state_of
from probneural.heads.training_data import recorded, training_data
from probneural.heads.weight_problem import residuals_of
from probneural.heads.weight_samples import WeightSampledPredictor
from probneural.pairs import Dataset
from probneural.randomness import check_seed, stream


@dataclass(frozen=True)
class MCDropout:
    """Dropout that stays on when predicting: M masks, and each makes an operator of its own.

    Layers are `nn.Dropout`, `nn.Dropout1d`, `nn.Dropout2d` and `nn.Dropout3d` with p > 0. A mask drops whole features with
    probability p, at all points and for all inputs alike, and divides the others by 1 - p. So a member is one function of
    its input, the same at every resolution. Train with channel dropout (`FNO(..., dropout=0.1)`, `nn.Dropout1d`): `nn.Dropout`
    on hidden fields drops single points in training, which is another and a weaker disturbance than whole channels.

    It costs no training beside that of the operator, and one evaluation per member. Its spread follows from p, not from the
    data: with more data it does not fall as a posterior does. Calibrate it on held-out fields. The prediction is the mean
    of the members; the operator's own output is that of no mask.

    Args:
        members: M.
        seed: Names the masks. Member i is the same one among any number.

    Raises:
        ArgumentError: If a setting is out of range.

    Reference:
        Gal and Ghahramani (2016), Dropout as a Bayesian approximation, section 4. Tompson, Goroshin, Jain, LeCun and
        Bregler (2015), Efficient object localization using convolutional networks, section 3.2, for whole channels.
        Deviations: a mask is drawn once per member and not per input; noise is what the mean leaves of the training data.

    Examples:
        >>> from probneural.fields import Field
        >>> from probneural.grids import Grid
        >>> from probneural.pairs import FieldPairs
        >>> operator = nn.Sequential(nn.Conv1d(1, 8, 1), nn.Tanh(), nn.Dropout1d(0.5), nn.Conv1d(8, 1, 1))
        >>> fields = Field(torch.randn(4, 1, 6), Grid.uniform((6,)))
        >>> predictor = MCDropout(16).fit(operator, FieldPairs(fields, fields))
        >>> predictor(fields).samples.shape
        torch.Size([16, 4, 1, 6])
    """

    members: int = 32
    _: KW_ONLY
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the settings."""
        assign(self, members=check_integer(self.members, "members", least=2, most=2**20), seed=check_seed(self.seed))

    @recorded
    @undisturbed()
    def fit(self, operator: nn.Module, data: Dataset) -> WeightSampledPredictor:
        """Draw the masks, and measure the noise that the mean leaves.

        Args:
            operator: A module from `(n, c, *grid)` to `(n, c', *grid)` that was trained with dropout layers; neither it nor
                the data are changed.
            data: Training pairs.

        Returns:
            A predictor of empirical fields, one sample per mask.

        Raises:
            UnsupportedError: If the operator has no dropout layers, or they drop no features.
            ArgumentError: If the operator is no module.
            DataError: If the data are not finite pairs.
            ShapeError: If the operator's outputs do not fit the data's.
        """
        copied = copied_operator(check_module(operator, "operator")).eval()
        given = training_data(data, copied)
        first = given.some(1)
        residuals_of(copied, first, given.query)  # raises where outputs do not fit
        layers = dropout_layers(copied)
        shapes = feature_shapes(copied, layers, first, given.query)
        like = first.inputs.values
        drawn = [
            {name: mask.to(like) for name, mask in _masks(layers, shapes, self.seed, number).items()}
            for number in range(self.members)
        ]
        masked = MaskedOperator(copied, drawn[0])
        shared = state_of(masked)
        states = [shared | {f"mask_{index}": own[name] for index, name in enumerate(masked.layers)} for own in drawn]
        return predictor_of_members(masked, _smallest(masked), states, given)


def _masks(
    layers: Mapping[str, _DropoutNd], shapes: Mapping[str, tuple[int, ...]], seed: int, number: int
) -> dict[str, Tensor]:
    """Factors of one member by layer, float64 on the CPU: 0 with probability p, else 1 / (1 - p)."""
    generator = stream(seed, "dropout masks", number)
    masks = {}
    for name, module in layers.items():
        kept = torch.rand(shapes[name], generator=generator, dtype=torch.float64, device="cpu") >= module.p
        masks[name] = kept.to(torch.float64) / (1.0 - module.p) if module.p < 1.0 else torch.zeros(shapes[name])
    return masks


def _smallest(module: nn.Module) -> ParameterVector:
    """A layout of one parameter: members differ in masks alone, but their weights are kept once per member."""
    name = min(module.named_parameters(), key=lambda named: named[1].numel())[0]
    return ParameterVector.of(module, [name])
