"""Keys of rows, records of training, and the units that they hold."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

import probneural as pn
from probneural.distributions.predictors.base import with_records
from probneural.distributions.predictors.mixture import MixturePredictor
from probneural.errors import DataError
from probneural.pairs import FieldPairs
from probneural.pairs.provenance import TrainingRecord, joined_record, record_of, row_keys, shared_rows
from tests.calibration.synthetic import GRID, Synthetic, pairs
from tests.helpers import normal


def test_pairs_have_the_same_keys_in_any_precision_and_from_any_source() -> None:
    data = pairs(50)
    keys = row_keys(data)
    assert keys.shape == (50, 1)
    assert len(keys.unique()) == 50
    assert torch.equal(row_keys(data.to(torch.float32)), keys)
    assert torch.equal(row_keys(data[[7, 3]]), keys[[7, 3]])
    stored = pn.data.from_arrays(data.inputs.values.numpy(), data.outputs.values.numpy(), grid=GRID)
    assert torch.equal(row_keys(stored), keys)


def test_keys_see_inputs_and_outputs_and_which_is_which() -> None:
    data = pairs(20)
    same = [FieldPairs(data.inputs, data.outputs.resample(GRID)), data[:]]
    other = [FieldPairs(data.inputs, pn.Field(data.outputs.values.roll(1, 2), GRID)), FieldPairs(data.outputs, data.inputs)]
    assert [shared_rows(row_keys(one), row_keys(data).flatten()) for one in (*same, *other)] == [20, 20, 0, 0]


def test_many_rows_are_read_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pairs(50)
    keys = row_keys(data)
    monkeypatch.setattr("probneural.pairs.provenance._VALUES_AT_ONCE", 3 * GRID.size)
    assert torch.equal(row_keys(data), keys)
    assert row_keys(data[:0]).shape == (0, 1)


def test_windows_that_share_a_state_share_a_key() -> None:
    data = pairs(4)
    states = torch.tensor([[10.0, 11.0], [11.0, 12.0], [12.0, 13.0], [20.0, 21.0]])
    keys = row_keys(FieldPairs(data.inputs, data.outputs, clock=pn.WindowClock(states, lead=1)))
    assert keys.shape == (4, 4)
    assert torch.equal(keys[1:3, 2], keys[:2, 3])
    assert shared_rows(keys, keys[[0, 3], 3]) == 3


def test_equal_windows_of_a_series_that_repeats_itself_are_others() -> None:
    """And so are they in another series, unless that is a copy."""
    values = normal(4, 1, GRID.size, seed=3).repeat(5, 1, 1)[None]
    whole = pn.data.Trajectories.from_array(values, times=torch.arange(20.0).double(), periodic=True).windows()
    first, second = whole.split(10, by="time")
    copied = pn.data.Trajectories.from_array(values[:, :12], times=torch.arange(12.0).double(), periodic=True).windows()
    assert torch.equal(first[0].inputs.values, first[4].inputs.values)
    used = record_of(first).row_keys
    assert [
        shared_rows(row_keys(one), used) for one in (first, second, copied, pn.FieldPairs(second[:].inputs, second[:].outputs))
    ] == [
        10,
        0,
        11,
        len(second),
    ]


def windows(*, leads: int = 6) -> FieldPairs:
    """Windows of two trajectories."""
    values = normal(2, leads, 1, GRID.size, seed=3)
    return pn.FieldTrajectories(pn.Field(values[:, 0], GRID), values[:, 1:], times=torch.arange(1.0, leads).double()).windows()


def test_windows_are_known_by_their_contents_where_their_times_are_lost() -> None:
    data = windows()
    plain = FieldPairs(data.inputs, data.outputs)
    predictor = with_records(Synthetic(), record_of(data))
    assert shared_rows(row_keys(plain), record_of(data).row_keys) == len(data)
    with pytest.raises(DataError, match="10 of 10"):
        pn.metrics.score(predictor(data.inputs), data.outputs)
    with pytest.raises(DataError, match="10 of 10"):
        pn.metrics.score_pairs(predictor, plain)
    scaled = pn.calibration.VarianceScale().fit(Synthetic(), data)
    with pytest.raises(pn.errors.CalibrationError, match="10 of 10"):
        pn.calibration.SimultaneousBand(level=0.5).fit(scaled, plain)


def test_windows_of_several_leads_are_known_together_by_their_contents() -> None:
    values = normal(2, 6, 1, GRID.size, seed=3)
    data = pn.FieldTrajectories(pn.Field(values[:, 0], GRID), values[:, 1:], times=torch.arange(1.0, 6.0).double())
    both = FieldPairs.cat([data.windows(), data.windows(lead=2)])
    assert both.clock is None
    for part in (data.windows(), data.windows(lead=2)):
        assert shared_rows(row_keys(part), record_of(both).row_keys) == len(part)
        assert shared_rows(row_keys(both), record_of(part).row_keys) == len(part)


def test_a_record_holds_times_and_units_of_the_data() -> None:
    data = pairs(4)
    assert record_of(data).step is None
    states = torch.arange(4.0)[:, None] + torch.tensor([0.0, 0.5, 2.0])
    record = record_of(FieldPairs(data.inputs, data.outputs, clock=pn.WindowClock(states, history=2, lead=3, step=0.5)))
    assert (record.history, record.lead, record.step) == (2, 3, 0.5)
    joined = joined_record([None, record, record_of(pairs(3, seed=9))])
    assert joined is not None
    assert (joined.lead, len(joined.row_keys)) == (3, 4 + 1 + len(states.unique()) + 3)
    assert joined_record([None]) is None


def in_units(field: pn.Field, *units: str) -> Any:
    """A field whose channels have units."""
    copied = field[:]
    object.__setattr__(copied, "units", units)
    return copied


def test_inputs_in_other_units_than_in_training_are_refused() -> None:
    data = pairs(12, channels=2)
    trained = FieldPairs(in_units(data.inputs, "K", "m/s"), in_units(data.outputs, "K", ""))
    record = record_of(trained)
    assert (record.input_units, record.output_units) == (("K", "m/s"), ("K", ""))
    predictor = with_records(Synthetic(channels=2), dataclasses.replace(record, row_keys=record.row_keys[:0]))
    for accepted in (data.inputs, trained.inputs, in_units(data.inputs, "", "m/s"), in_units(data.inputs, "K", "")):
        predictor(accepted)
    with pytest.raises(DataError, match="input channel 0 in 'K', the unit of the training inputs; got 'degC'"):
        predictor(in_units(data.inputs, "degC", "m/s"))
    celsius = FieldPairs(data.inputs, in_units(data.outputs, "degC", ""))
    for refused in (
        lambda: pn.calibration.VarianceScale().fit(predictor, celsius),
        lambda: pn.metrics.score_pairs(predictor, celsius),
        lambda: pn.metrics.score(predictor(data.inputs), celsius.outputs),
    ):
        with pytest.raises(DataError, match="output channel 0 in 'K', the unit of the training outputs; got 'degC'"):
            refused()


def test_mixtures_know_the_pairs_of_all_members() -> None:
    first, second = pairs(5), pairs(6, seed=7)
    members = [with_records(Synthetic(), record_of(data)) for data in (first, second)]
    mixture = MixturePredictor([*members, Synthetic()])
    assert mixture.trained_on is not None
    assert torch.equal(mixture.trained_on.row_keys, torch.cat([row_keys(first), row_keys(second)]).flatten().unique())
    assert MixturePredictor([Synthetic()]).trained_on is None


def test_fields_hold_the_provenance_of_their_predictor() -> None:
    record = TrainingRecord(row_keys=torch.tensor([3]))
    u = with_records(Synthetic(), record)(pairs(4).inputs)
    probe = pn.functionals.integral(GRID)
    moved = u.constrain(probe, probe(u.mean))
    conditioned = u.condition(probe, probe(u.mean), noise=1.0)
    for field in (u, u[1:], u.marginal(2), u.apply(probe), moved, conditioned, u.under(conditioned.latent)):
        assert field.provenance is not None
        assert field.provenance.trained_on is record
        assert field.is_uncalibrated
    assert u[[2, 0]].provenance is not None
    assert torch.equal(u[[2, 0]].provenance.inputs.values, pairs(4).inputs.values[[2, 0]])  # type: ignore[union-attr]
    assert u.apply(probe).provenance.inputs is None  # type: ignore[union-attr]
    own = pn.distributions.EmpiricalField(normal(3, 2, 1, 16), grid=GRID)
    assert own.provenance is None
    assert not own.is_uncalibrated
