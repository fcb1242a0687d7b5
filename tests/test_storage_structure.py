"""Files whose metadata were changed and whose digest was made again: a FileError, or what they now say. Never anything else."""

from __future__ import annotations

import copy
import json
import random
import signal
import subprocess
import sys
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from probneural.calibration import VarianceScale
from probneural.calibration.variance.discrepancy import Decomposition
from probneural.calibration.variance.scaled_predictor import ScaledPredictor
from probneural.distributions import Predictor
from probneural.errors import (
    ArgumentError,
    ConvergenceWarning,
    DataError,
    DataWarning,
    FileError,
    ProbneuralError,
    ReadoutError,
    UnsupportedError,
)
from probneural.functionals import integral
from probneural.grids import Grid
from probneural.heads import KernelOperator
from probneural.operators import (
    DeepONet,
    HiddenLayers,
    PODDeepONet,
    Rollout,
)
from probneural.registry import KINDS, kind_of
from probneural.storage import load, save
from probneural.storage.kinds import parameters
from probneural.training import files
from tests import file_mutations as change
from tests import fitted_objects
from tests.heads import cases
from tests.helpers import held_out

CPU_SECONDS = 1.0
"""What loading may take at most: of processor time, so that a busy machine does not matter."""
MEMORY_FACTOR, MEMORY_SLACK = 8, 2**22
"""Bytes of new memory at most: a multiple of the file, and what the allocator and the interpreter round up to."""


def _scattered(count: int) -> Grid:
    generator = cases.generator(1)
    points = torch.rand(count, 1, generator=generator, dtype=torch.float64)
    return Grid.scattered(points, torch.rand(count, generator=generator, dtype=torch.float64))


def _variational() -> Predictor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # three steps
        predictor: Predictor = cases.fitted("network-variational", "fno-1d")
    return predictor


def _updated() -> Predictor:
    case = cases.operator_case("fno-ends")
    operator = copy.deepcopy(case.operator).eval()
    predictor: Predictor = cases.fitted("full", case.name).update(
        cases.data_for(operator, cases.fields(cases.ENDS, 2, 1, seed=20))
    )
    return predictor


def _calibrated(head: str, operator: str) -> Predictor:
    return VarianceScale().fit(cases.fitted(head, operator), held_out(cases.operator_case(operator).data))


@cache
def _kernel() -> Any:
    case = cases.operator_case("fno-outputs")
    return KernelOperator(groups=2, iterations=2).fit(case.operator, case.data)


def _conditioned() -> Predictor:
    outputs = _kernel()(cases.operator_case("fno-outputs").data.inputs)[:2]
    told = integral(outputs.grid)
    predictor: Predictor = _kernel().condition(
        cases.operator_case("fno-outputs").data[:2].inputs, told, values=told(outputs.mean), noise=1.0
    )
    return predictor


THINGS: dict[str, Any] = {
    "fno": lambda: cases.operator_case("fno-ends").operator,
    "repeated step": lambda: Rollout(cases.operator_case("fno-ends").operator, 3, residual=True),
    "deeponet": lambda: DeepONet(
        1, 2, sensors=_scattered(5), domain=Grid.uniform((4, 3)), basis=3, layers=HiddenLayers(width=4, depth=2)
    ),
    "pod-deeponet": lambda: PODDeepONet(
        2,
        1,
        sensors=Grid.uniform(6),
        out_grid=_scattered(7),
        basis=3,
        layers=HiddenLayers(width=4, depth=1),
    ),
    "regression": lambda: cases.operator_case("regression").operator,
    "last-layer": lambda: cases.fitted("last-layer", "fno-outputs"),
    "updated": _updated,
    "calibrated": lambda: _calibrated("low-rank", "fno-outputs"),
    "kronecker draw": lambda: _calibrated("kronecker", "fno-2d").draw(3),
    "sampled weights": lambda: cases.fitted("diagonal", "deeponet").sampled(3, seed=1),
    "ensemble": lambda: cases.fitted("deep-ensemble", "fno-1d"),
    "foreign": lambda: cases.operator_case("conv").operator,
    "kernel": _kernel,
    "kernel draw": lambda: _kernel().draw(5),
    "conditioned": _conditioned,
    "variational": _variational,
    **{name: partial(fitted_objects.fitted, name) for name in fitted_objects.KINDS},
}


GIVEN: dict[str, nn.Module | None] = {"foreign": cases.ConvStack().double()}
"""What `load` needs of modules that are not ours."""


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> dict[str, change.Opened]:
    folder = tmp_path_factory.mktemp("files")
    opened = {}
    for name, make in THINGS.items():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            save(make(), folder / name)
        load(folder / name, operator=GIVEN.get(name))  # what is imported at the first time is no part of a file's costs
        opened[name] = change.opened(folder / name)
    return opened


@contextmanager
def deadline() -> Iterator[None]:
    """Raise a TimeoutError in what takes too much processor time."""

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


class Peak:
    """The most memory that this process held since it was made, beyond what it held then."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")
        self.before = self._field("VmRSS")

    @property
    def growth(self) -> int:
        return self._field("VmHWM") - self.before

    @staticmethod
    def _field(name: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def says(thing: Any, folder: Path) -> Any:
    """What a file of this thing holds as metadata."""
    save(thing, folder / "again")
    return change.opened(folder / "again").content


def agrees(described: Any, wanted: Any) -> bool:
    """Whether two descriptions are equal; arguments that `wanted` leaves out have defaults, given once or for each axis."""
    if isinstance(wanted, dict) and isinstance(described, dict):
        if isinstance(wanted.get("parts"), dict) and isinstance(described.get("parts"), dict):
            described = {**described, "parts": {**described["parts"]}}
            for name, parameter in parameters(KINDS[wanted["kind"]]).items():
                said = described["parts"].get(name, object())
                per_axis = isinstance(said, list) and all(agrees(one, parameter.default) for one in said)
                if name not in wanted["parts"] and (per_axis or agrees(said, parameter.default)):
                    del described["parts"][name]
        return described.keys() == wanted.keys() and all(agrees(described[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list) and isinstance(described, list):
        return len(described) == len(wanted) and all(map(agrees, described, wanted))
    if _is_number(described) and _is_number(wanted):
        return described == wanted or (described != described and wanted != wanted)  # NaN is NaN
    if wanted is None:
        return described is None or described == {"mapping": {}}
    return type(described) is type(wanted) and described == wanted


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _use(name: str, thing: Any) -> Callable[[Any], object]:
    """A use of what may be loaded in place of a thing: predict and draw, or what its kind computes."""
    inputs = cases.fields(thing.domain, 2, thing.in_channels, seed=9).to(thing.dtype) if isinstance(thing, Predictor) else None

    def used(loaded: Any) -> None:
        if isinstance(loaded, Predictor) and inputs is not None:
            assert loaded(inputs).variance.shape[0] == len(inputs)
            assert loaded.draw(0)(inputs.values, grid=inputs.grid).shape[0] == len(inputs)
        # A changed file may ask for any number of corrections.
        if name in {*fitted_objects.KINDS} - {"of a corrected predictor"} and type(loaded) is type(thing):
            fitted_objects.arrays(name, loaded)

    return used


def outcome(path: Path, content: Any, given: nn.Module | None, use: Callable[[Any], object] | None = None) -> str:
    """What became of a file: "refused", "as it says", or how it broke the promise."""
    size = path.stat().st_size
    peak = Peak()
    try:
        with deadline(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)  # of classes that were changed, which hold no state
            loaded = load(path, operator=given)
    except FileError:
        verdict = "refused"
    except TimeoutError:
        return "too slow"
    except Exception as error:  # noqa: BLE001 (which ones there are is the question)
        if given is None or not isinstance(error, ArgumentError):
            return f"raw {type(error).__name__}"
        verdict = "refused"  # file and module do not fit, and either may be wrong
    else:
        if not isinstance(loaded, nn.Module) and kind_of(loaded) is None:
            return f"a {type(loaded).__name__}"
        verdict = (
            "as it says" if agrees(_without_class(says(loaded, path.parent)), _without_class(content)) else "another thing"
        )
        if use is not None:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", DataWarning)  # of a mask that a changed record names
                    use(loaded)
            except ProbneuralError:  # of values that are not finite, or of another domain
                pass
            except Exception as error:  # noqa: BLE001
                return f"raw {type(error).__name__} in use"
    if peak.growth > MEMORY_FACTOR * size + MEMORY_SLACK:
        return f"too large: {peak.growth:,} bytes for a file of {size:,}"
    return verdict


def _without_class(content: Any) -> Any:
    """Leave out what only warnings need: the classes of a module that is not ours."""
    metadata = content["metadata"]
    return {**content, "metadata": {**metadata, "classes": {}}} if metadata["kind"] == "Module" else content


def run(corpus: dict[str, change.Opened], folder: Path, *, each: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Change every file of the corpus in `each` ways; count what became of them, and name what should not have."""
    counts: Counter[str] = Counter()
    wrong = []
    for name, found in corpus.items():
        draw = random.Random(zlib.crc32(f"{name} {seed}".encode()))
        change.write(folder / "file", found, found.content)
        use = _use(name, load(folder / "file", operator=GIVEN.get(name)))
        for number in range(each):
            if number % 2:
                what, damaged = change.damaged(found, draw)
                content = damaged.content
            else:
                damaged = found
                what, content = change.mutated(found.content, draw)
            change.write(folder / "file", damaged, content)
            verdict = outcome(folder / "file", content, GIVEN.get(name), use)
            counts[verdict] += 1
            if verdict not in ("refused", "as it says"):
                wrong.append(f"{name} {number} ({what}): {verdict}")
    return counts, wrong


def test_changed_files_are_refused_or_are_what_they_say(corpus: dict[str, change.Opened], tmp_path: Path) -> None:
    counts, wrong = run(corpus, tmp_path, each=7, seed=0)
    assert wrong == []
    assert counts.total() == 7 * len(THINGS)
    assert counts["as it says"] >= 5


@pytest.mark.slow
def test_many_changed_files_are_refused_or_are_what_they_say(corpus: dict[str, change.Opened], tmp_path: Path) -> None:
    counts, wrong = run(corpus, tmp_path, each=200, seed=1)
    assert wrong == []
    assert counts.total() == 200 * len(THINGS)
    assert counts["as it says"] >= 200


SIZES = ["width", "depth", "in_channels", "out_channels", "projection", "basis", "frequencies", "components"]


@pytest.mark.parametrize("number", [20_000, 10**7, 10**12, 2**63 - 1, 2**63, 10**30])
@pytest.mark.parametrize("name", ["fno", "deeponet", "pod-deeponet", "regression"])
def test_operators_larger_than_their_file_are_refused_before_they_are_built(
    name: str, number: int, corpus: dict[str, change.Opened], tmp_path: Path
) -> None:
    opened = corpus[name]
    changed = 0
    for size in SIZES:
        content = copy.deepcopy(opened.content)
        configuration = content["metadata"]["configuration"]
        layers = configuration.get("layers", {"parts": {}})["parts"]
        if size in configuration or size in layers:
            (configuration if size in configuration else layers)[size] = number
            change.write(tmp_path / "file", opened, content)
            assert outcome(tmp_path / "file", content, None) == "refused", size
            changed += 1
    assert changed >= 3


def test_nothing_is_refused_where_several_types_are_possible(corpus: dict[str, change.Opened], tmp_path: Path) -> None:
    opened = corpus["fno"]
    content = copy.deepcopy(opened.content)
    content["metadata"]["configuration"]["embeds_position"] = None
    change.write(tmp_path / "file", opened, content)
    with pytest.raises(FileError, match="embeds_position"):
        load(tmp_path / "file")


@pytest.mark.parametrize("level", [200, 5_000, 200_000])
def test_deep_nesting_is_refused(level: int, corpus: dict[str, change.Opened], tmp_path: Path) -> None:
    opened = corpus["fno"]
    for opening, closing in (("[", "]"), ('{"x":', "}")):
        text = f'{{"metadata": {{"kind": {opening * level}1{closing * level}}}, "complex": [], "orders": {{}}}}'
        change.write(tmp_path / "file", opened, None, text=text)
        with pytest.raises(FileError, match="more than 100 levels"):
            load(tmp_path / "file")


def test_text_that_python_does_not_take_is_refused(corpus: dict[str, change.Opened], tmp_path: Path) -> None:
    opened = corpus["fno"]
    draw = random.Random(0)
    texts = [change.repeated_key(opened.content, draw) for _ in range(5)]
    texts += [json.dumps(opened.content).replace('"width": 4', f'"width": {"9" * 5000}'), "", "NaN", "[]", "null", '"text"']
    assert len({*texts, json.dumps(opened.content)}) > 7
    for text in texts:
        change.write(tmp_path / "file", opened, opened.content, text=text)
        with pytest.raises(FileError):
            load(tmp_path / "file")


@pytest.mark.parametrize("complex_names", [["weight", "weight"], ["missing"], ["count"], ["long"], [""], "weight", [1], None])
def test_names_of_complex_tensors_are_checked(complex_names: Any, tmp_path: Path) -> None:
    tensors = {
        "weight": torch.zeros(3, dtype=torch.complex64),
        "count": torch.zeros(2, dtype=torch.int64),
        "long": torch.zeros(3),
    }
    files.write(tmp_path / "file", tensors, metadata={})
    opened = change.opened(tmp_path / "file")
    assert opened.content["complex"] == ["weight"]
    change.write(tmp_path / "file", opened, {**opened.content, "complex": complex_names})
    with pytest.raises(FileError, match="complex"):
        files.read(tmp_path / "file")


@pytest.mark.parametrize("order", [[0], [0, 0], [0, 2], [-1, 0], [1, 0, 2], ["1", "0"], [True, False], {}, None])
def test_memory_orders_are_checked(order: Any, tmp_path: Path) -> None:
    files.write(tmp_path / "file", {"weight": torch.zeros(3, 2).mT}, metadata={})
    opened = change.opened(tmp_path / "file")
    assert opened.content["orders"] == {"weight": [1, 0]}
    for orders in ({"weight": order}, {"missing": [1, 0]}):
        change.write(tmp_path / "file", opened, {**opened.content, "orders": orders})
        with pytest.raises(FileError, match="orders"):
            files.read(tmp_path / "file")


def nested(times: int) -> Predictor:
    predictor = cases.fitted("last-layer", "fno-1d")
    for _ in range(times):
        one, none = torch.ones(1, dtype=torch.float64), torch.zeros(0, dtype=torch.int64)
        whole = Decomposition(process=None, root_fraction=one, white_fraction=0.0 * one, variance=0.0 * one)
        predictor = ScaledPredictor(
            predictor,
            one,
            noise_scale=one,
            noise=predictor.noise,
            decomposition=whole,
            calibrated_on=none,
        )
    return predictor


def test_what_is_saved_can_be_loaded_however_deep_it_is(tmp_path: Path) -> None:
    predictor = nested(40)
    save(predictor, tmp_path / "file")
    loaded: Any = load(tmp_path / "file")
    inputs = cases.operator_case("fno-1d").inputs
    assert torch.equal(loaded(inputs).variance, predictor(inputs).variance)
    for times in (60, 300, 2000):
        with pytest.raises(UnsupportedError, match="nested less deeply"):
            save(nested(times), tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.bad_input
def test_what_could_not_be_loaded_is_not_saved(tmp_path: Path) -> None:
    predictor = cases.fitted("last-layer", "fno-1d")
    with pytest.raises(UnsupportedError, match="an integer as seed"):
        save(predictor.draw(2**70), tmp_path / "file")
    assert not list(tmp_path.iterdir())


VALUES: list[tuple[str, str, Any, str]] = [
    ("kernel", "precision", "half", "single, double"),
    ("kernel", "processes.0.parts.nugget", -1.0, "nugget"),
    ("kernel", "processes.0.parts.nugget", float("nan"), "nugget"),
    ("kernel", "processes.0.parts.nugget", float("inf"), "nugget"),
    ("kernel", "processes.0.parts.covariance.parts.kernel", "cubic", "rbf"),
    ("kernel draw", "seed", -1, "seed"),
    ("calibrated", "discrepancy_variance", None, "as discrepancy_variance of a ScaledPredictor; got None"),
    ("last-layer", "in_channels", 3, "2 input channels"),
    ("last-layer", "readout.parts.name", "lift.readout", "a submodule's name"),
    ("last-layer", "readout.parts.name", "", "a submodule's name"),
    ("last-layer", "readout.parts.channel_axis", 0, "channel_axis"),
    ("updated", "summary.parts.structure", "triangular", "low_rank"),
    ("updated", "variance_estimation.parts.probes", 0, "at least 1 as probes"),
    ("updated", "variance_estimation.parts.sketch", -1, "at least 1 as sketch"),
    ("updated", "layout.parts.names.0", "lift.bias", "layout"),
    ("updated", "layout.parts.is_complex", [], "not 12 flags"),
    ("updated", "domain.parts.shape.0", 12, "uniform axes"),
    ("updated", "domain.parts.axes.0.parts.length", float("nan"), "a finite number above 0 as lengths"),
    ("updated", "domain.parts.axes.0.parts.size", 2**63, "fewer than 2.63 points"),
    ("kernel", "in_channels", 1, "made of"),
    ("kernel", "operator", None, "no tensors but those"),
    ("kernel", "inputs", None, "as inputs; got None"),
    ("last-layer", "domain", 5, "a Grid as domain; got 5"),
    ("last-layer", "shift", 5, "a tensor named shift as shift; got 5"),
    ("last-layer", "readout", {"kind": "Grid", "parts": {}}, "a Readout as readout; got 'Grid'"),
]


@pytest.mark.parametrize(("name", "place", "value", "message"), VALUES, ids=[f"{v[0]} {v[1]} {v[2]}" for v in VALUES])
def test_values_that_a_class_refuses(
    name: str, place: str, value: Any, message: str, corpus: dict[str, change.Opened], tmp_path: Path
) -> None:
    content = copy.deepcopy(corpus[name].content)
    node: Any = content["metadata"]["parts"]
    *path, last = place.split(".")
    for step in path:
        node = node[int(step) if isinstance(node, list) else step]
    node[int(last) if isinstance(node, list) else last] = value
    change.write(tmp_path / "file", corpus[name], content)
    with pytest.raises(FileError, match=message):
        load(tmp_path / "file")


def test_every_tensor_has_its_place(corpus: dict[str, change.Opened], tmp_path: Path) -> None:
    opened = corpus["last-layer"]
    more = {**opened.tensors, "extra": torch.zeros(1)}
    change.write(tmp_path / "file", change.Opened(more, opened.header, opened.content), opened.content)
    with pytest.raises(FileError, match="no tensors but those .*extra"):
        load(tmp_path / "file")
    swapped = {**opened.tensors, "noise": opened.tensors["effective_observations"][:1].clone()}
    change.write(tmp_path / "file", change.Opened(swapped, opened.header, opened.content), opened.content)
    with pytest.raises(FileError, match=r"Float64\[Tensor, .*sizes of equal name being equal"):
        load(tmp_path / "file")


def test_a_readout_of_another_width_is_refused_in_use(corpus: dict[str, change.Opened], tmp_path: Path) -> None:
    content = copy.deepcopy(corpus["last-layer"].content)
    content["metadata"]["parts"]["readout"]["parts"]["has_bias"] = False
    change.write(tmp_path / "file", corpus["last-layer"], content)
    with pytest.raises(ReadoutError, match="expected 7 features; got 6"):
        load(tmp_path / "file")(cases.operator_case("fno-outputs").data.inputs)


DAMAGED: list[tuple[str, str, Callable[[Tensor], Tensor]]] = [
    ("kronecker draw", "predictor.inner.weights.factors.bases.0.blocks.positions", Tensor.double),
    ("kronecker draw", "predictor.inner.weights.factors.mixing.sign", Tensor.float),
    ("variational", "weights.std", Tensor.half),
    ("sampled weights", "vectors", lambda tensor: tensor[:, 1:]),
    ("conditioned", "matrix", lambda tensor: torch.nan * tensor),
    ("updated", "shift", lambda tensor: tensor[:-1]),
    ("novelty", "groups", lambda tensor: tensor - 1),
    ("calibrated in one call", "groups", lambda tensor: tensor + 2**40),
]


@pytest.mark.parametrize(("name", "tensor", "damage"), DAMAGED, ids=[f"{name} {tensor}" for name, tensor, _ in DAMAGED])
def test_tensors_that_do_not_fit_the_rest_are_refused(
    name: str, tensor: str, damage: Callable[[Tensor], Tensor], corpus: dict[str, change.Opened], tmp_path: Path
) -> None:
    opened = corpus[name]
    tensors = {**opened.tensors, tensor: damage(opened.tensors[tensor]).contiguous()}
    change.write(tmp_path / "file", change.Opened(tensors, opened.header, opened.content), opened.content)
    with pytest.raises(FileError):
        load(tmp_path / "file")


def test_coordinates_that_are_not_finite_are_refused(corpus: dict[str, change.Opened], tmp_path: Path) -> None:
    opened = corpus["kernel"]
    tensors = {**opened.tensors, "inputs.unit": torch.full_like(opened.tensors["inputs.unit"], torch.nan)}
    change.write(tmp_path / "file", change.Opened(tensors, opened.header, opened.content), opened.content)
    with pytest.raises(DataError, match="coordinates of inputs"):
        load(tmp_path / "file")(cases.operator_case("fno-outputs").data.inputs)


WAITING = """
import os, socket, sys
from pathlib import Path
import probneural as pn
folder = Path(sys.argv[1])
os.mkfifo(folder / "pipe")
(folder / "folder").mkdir()
listening = socket.socket(socket.AF_UNIX)
listening.bind(str(folder / "socket"))
for path in (folder / "pipe", folder / "folder", folder / "socket", "/dev/zero", "/dev/stdin", "/dev/tty"):
    for attempt in (lambda: pn.load(path), lambda: pn.save(pn.operators.FNO(1, 1, modes=(1,)), path)):
        try:
            attempt()
        except pn.errors.FileError as error:
            print(error)
"""


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    """Opening a pipe waits for its other end, so this runs in a process of its own."""
    command = [sys.executable, "-c", WAITING, str(tmp_path)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, stdin=subprocess.PIPE)
    lines = finished.stdout.splitlines()
    assert len(lines) == 12
    assert sum("is no regular file" in line for line in lines) >= 10
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "pipe", "socket"]
