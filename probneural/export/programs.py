"""Programs of tensor operations with a batch of any size: traced, checked against PyTorch, and written to files."""

from __future__ import annotations

import functools
import io
import json
import logging
import operator
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn

from probneural import atomic
from probneural.calibration.calibrate import CalibratedPredictor
from probneural.checks import check_finite, check_least, check_path, optional
from probneural.contexts import AUTOGRAD_STATE, without_gradients
from probneural.distributions import Predictor
from probneural.distributions.predictors.base import FunctionDraw
from probneural.errors import ArgumentError, ProbneuralError, UnsupportedError
from probneural.export.modules import Evaluation, moments, unsupported
from probneural.fields import Field, check_field, evaluate, power_of_two
from probneural.grids import Grid, check_grid

if TYPE_CHECKING:
    from torch.export import ExportedProgram

KEY = "probneural"
"""Key of the description in files."""
_BATCH = 3
"""Functions in a trace: PyTorch takes a batch of one, or of none, for a constant."""
_NUMBERS = (*range(1, 2049), *(2**power + step for power in range(12, 21) for step in (-1, 0, 1)))
"""Of functions, that conditions on them are tried with."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Program:
    """A traced program for files.

    Attributes:
        exported: The traced program.
        example: Input values that it was traced with, `(3, c, *grid)`.
        expected: Outputs of the operator or predictor itself.
        outputs: Names of the outputs.
        description: Description of the file.
    """

    exported: ExportedProgram
    example: Tensor
    expected: tuple[Tensor, ...]
    outputs: tuple[str, ...]
    description: Mapping[str, Any]

    @property
    def metadata(self) -> str:
        """The description as JSON."""
        return json.dumps(self.description)

    def check(self, run: Callable[[Tensor], Sequence[Tensor]]) -> None:
        """Compare the outputs of a file with the expected ones, for one sample and for several.

        Raises:
            UnsupportedError: If they differ by more than rounding explains.
        """
        limit = torch.finfo(self.example.dtype).eps ** 0.5
        for count in (1, len(self.example)):
            for name, output, expected in zip(self.outputs, run(self.example[:count]), self.expected, strict=True):
                target = expected[:count]
                size = expected.abs().movedim(1, 0).flatten(1).amax(1).reshape(-1, *(1,) * (target.ndim - 2))
                error = (output.to(target) - target).abs() / size.clamp_min(torch.finfo(size.dtype).tiny)
                if not bool((error <= limit).all()):
                    raise UnsupportedError(
                        expected=f"a file that gives PyTorch's {name} to {limit:.0e} of its largest value",
                        got=f"a difference of {float(error.max()):.1e} for {count} functions",
                        remedy="export a module that draws no random numbers, and whose operations do not depend on values or "
                        "on the number of functions",
                    )


@without_gradients()
def traced(thing: nn.Module | Predictor, example: Field, query: Grid | None, *, is_for_onnx: bool = False) -> Program:
    """Trace an operator or a predictor on the grid of an example.

    Values that depend on no input, such as transforms and trunk networks, are computed here and stored as constants.

    Args:
        thing: An operator, which is traced in evaluation mode, or a predictor; it is not changed.
        example: Input samples, at least one, of which the grid counts; of any values that the operator takes.
        query: Where to evaluate; the example's grid by default.
        is_for_onnx: Whether the program is for ONNX, on the CPU.

    Raises:
        UnsupportedError: If it is something else, or PyTorch cannot trace it.
        DataError: If there is no sample in the example, or it is not finite.
        GridError: If it lives on another domain than the training inputs, or the query is no grid.
    """
    if not isinstance(thing, nn.Module | Predictor) or isinstance(thing, FunctionDraw):
        raise unsupported(thing)
    check_least(len(check_field(example, "example")), 1, "functions as example", remedy="give test.inputs[:1]")
    check_finite(example.values, "example")
    where = example.grid if query is None else check_grid(query, "query")
    inputs = example[torch.arange(_BATCH) % len(example)]
    with quiet():
        module, inputs, expected = _prepared(thing, inputs, where)
        if is_for_onnx:
            module, inputs = module.cpu(), inputs.to("cpu")
        target = next((tensor.device for tensor in module.state_dict().values()), inputs.device)
        values = inputs.values.detach().to(target)
        folded = fold_constants(_functional(_exported(module, values)))
        exported = _exported(folded, torch.zeros_like(values))  # PyTorch's files hold the values of a trace
    description = {
        "version": version(KEY),
        "inputs": [_array("values", values, example.grid)],
        "outputs": [_array(name, tensor, where) for name, tensor in expected.items()],
        "noise": thing.noise.tolist() if isinstance(thing, Predictor) else None,
        "level": thing.report.level if isinstance(thing, CalibratedPredictor) and "lower" in expected else None,
    }
    program = Program(
        exported=exported,
        example=values,
        expected=tuple(tensor.to(target) for tensor in expected.values()),
        outputs=tuple(expected),
        description=description,
    )
    module = exported.module(check_guards=False)
    program.check(lambda batch: (result,) if isinstance(result := module(batch), Tensor) else result)
    return program


@contextmanager
def quiet() -> Iterator[None]:
    """Keep other threads from tracing, and silence messages of PyTorch's exporters about their parts; errors stay."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    with AUTOGRAD_STATE, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)


def _prepared(thing: nn.Module | Predictor, inputs: Field, query: Grid) -> tuple[nn.Module, Field, dict[str, Tensor]]:
    """A module of plain tensors, inputs of its dtype, and expected outputs by name."""
    if isinstance(thing, Predictor):
        units = torch.ones(thing.out_channels, dtype=torch.float64)
        moments(thing, inputs.grid, query, units=units)  # the reason why not, before anything is evaluated
        u = thing(inputs, query)
        deviation = u.standard_deviation
        expected = {"mean": u.mean, "standard_deviation": deviation}
        units = power_of_two(deviation.detach().to("cpu", torch.float64).movedim(1, 0).flatten(1).amax(1))
        if isinstance(thing, CalibratedPredictor) and thing.quantile is not None:
            band = thing.band(inputs, query)
            expected |= {"lower": band.lower.to(u.mean), "upper": band.upper.to(u.mean)}
        return moments(thing, inputs.grid, query, units=units), inputs.to(thing.dtype).to(thing.device), expected
    evaluation = Evaluation(thing, inputs.grid, query)
    like = next((tensor for tensor in evaluation.parameters() if tensor.is_floating_point() or tensor.is_complex()), None)
    if like is not None:
        inputs = inputs.to(like.dtype.to_real()).to(like.device)
    return evaluation, inputs, {"output": evaluate(evaluation.operator, inputs, query)}


def _exported(module: nn.Module, values: Tensor) -> ExportedProgram:
    """Trace with a batch of any size.

    Raises:
        UnsupportedError: If PyTorch cannot.
    """
    from torch._dynamo.exc import UserError
    from torch.export import Dim, export

    trace = functools.partial(export, module, (values,), dynamic_shapes=({0: Dim("n", min=1)},), strict=False)
    try:
        try:
            program = trace()
        except UserError as error:
            if "satisfy the generated guard" not in str(error):
                raise
            program = trace(prefer_deferred_runtime_asserts_over_guards=True)
            _discharge(program)
    except ProbneuralError:
        raise
    except Exception as error:  # torch.export raises errors of a dozen kinds
        raise UnsupportedError(
            expected="a module that torch.export can trace with a batch of any size",
            got=f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}",
            remedy="its Python code may not depend on values, nor take the batch for a number: values.shape[0] is a size, "
            "len(values) a constant",
        ) from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # it holds paths of this machine
    return program


def _discharge(program: ExportedProgram) -> None:
    """Remove the checks of a program on the number of samples, if they hold for thousands of numbers.

    PyTorch 2.11 does not prove that 2 n is at most 140 n, and checks it in each run; other runtimes have no such check.

    Raises:
        RuntimeError: If one does not hold, or is another check.
    """
    questions = [node for node in program.graph.nodes if node.target is torch.ops.aten._assert_scalar.default]
    for count in _NUMBERS:
        sizes = _known_sizes(program.graph, count)
        if not all(sizes.get(node.args[0], False) for node in questions):
            raise RuntimeError(f"{questions[0].args[1]} does not hold for every number of functions")
    for node in questions:
        program.graph.erase_node(node)
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()


def _known_sizes(graph: fx.Graph, count: int) -> dict[Any, Any]:
    """Values of the nodes that nothing but the number of samples decides."""
    sizes: dict[Any, Any] = {}
    for node in graph.nodes:
        if node.target is torch.ops.aten.sym_size.int:
            if node.args[0].op == "placeholder" and node.args[1] == 0:
                sizes[node] = count
        elif node.op != "call_function" or node.target is torch.ops.aten._assert_scalar.default:
            continue
        elif node.all_input_nodes and all(argument in sizes for argument in node.all_input_nodes):
            sizes[node] = node.target(*fx.node.map_arg(node.args, sizes.get), **fx.node.map_arg(node.kwargs, sizes.get))
    return sizes


def _functional(program: ExportedProgram) -> ExportedProgram:
    """Write operations in place as ones that change nothing.

    Raises:
        UnsupportedError: If the module changes its own buffers.
    """
    program = program.run_decompositions({})
    if program.graph_signature.buffers_to_mutate:
        raise UnsupportedError(
            expected="a module that changes no buffer in evaluation mode",
            got=", ".join(program.graph_signature.buffers_to_mutate.values()),
            remedy="keep no running state, or update it in training mode only",
        )
    return program


def fold_constants(program: ExportedProgram) -> fx.GraphModule:
    """Replace all operations that depend on no input by their results.

    Numbers beside tensors of double precision become tensors too: ONNX files would hold them in single precision.
    """
    module: fx.GraphModule = program.module(check_guards=False)
    constants: dict[fx.Node, Any] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr":
            constants[node] = operator.attrgetter(node.target)(module)
        elif node.op == "call_function" and all(argument in constants for argument in node.all_input_nodes):
            arguments, settings = fx.map_arg((node.args, node.kwargs), constants.__getitem__)
            constants[node] = node.target(*arguments, **settings)
    for node, value in constants.items():
        is_used = any(user not in constants for user in node.users)
        if node.op == "call_function" and is_used and isinstance(value, Tensor):
            constant = _constant(module, value.detach().clone(memory_format=torch.contiguous_format), before=node)
            node.replace_all_uses_with(constant, delete_user_cb=lambda user: user not in constants)
    for node in module.graph.nodes:
        if node not in constants and _is_double(node) and isinstance(node.target, torch._ops.OpOverload):
            takes_tensor = [isinstance(argument.type, torch.TensorType) for argument in node.target._schema.arguments]
            for place, argument in enumerate(node.args):
                if isinstance(argument, float) and takes_tensor[place]:
                    number = torch.tensor(argument, dtype=torch.float64, device=node.meta["val"].device)
                    node.update_arg(place, _constant(module, number, before=node))
    for node in reversed(module.graph.nodes):
        if node in constants and not node.users:
            module.graph.erase_node(node)
    module.recompile()
    module.delete_all_unused_submodules()
    return module


def _constant(module: fx.GraphModule, value: Tensor, *, before: fx.Node) -> fx.Node:
    name = f"constant_{sum(1 for _ in module.buffers())}"
    module.register_buffer(name, value)
    with module.graph.inserting_before(before):
        return module.graph.get_attr(name)


def _is_double(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.dtype == torch.float64


def _array(name: str, values: Tensor, grid: Grid) -> dict[str, Any]:
    """Description of an input or an output."""
    return {
        "name": name,
        "shape": ["n", *values.shape[1:]],
        "dtype": str(values.dtype).removeprefix("torch."),
        "grid": _described(grid),
    }


def _described(grid: Grid) -> dict[str, Any]:
    if not grid.is_uniform:
        return {"points": grid.points.tolist()}
    return {
        "shape": grid.shape,
        "origin": [axis.origin for axis in grid.axes],
        "lengths": grid.lengths,
        "periodic": grid.periodic,
        "endpoint": grid.endpoint,
    }


_OPSET = 18
"""Version of ONNX's operators: the oldest that PyTorch's exporter writes."""
_LARGEST = 2**31 - 1
"""Bytes of an ONNX file: it is one protocol buffer."""
_OUTPUT, _INNER = "output.", ".inner"
"""Temporary names of outputs until inner values of the same name are renamed; and the suffix of these."""


def to_onnx(thing: nn.Module | Predictor, path: str | os.PathLike[str], *, example: Field, query: Grid | None = None) -> None:
    """Write an operator, or moments and band of a predictor, as an ONNX file.

    The file has one input, `values` `(n, c, *grid)` for any n, on the grid of the example. Of an operator it has the output
    `output`, of a predictor `mean` and `standard_deviation`, `(n, c', *query)` each, in physical units. A predictor of
    [`calibrate`][probneural.calibration.calibrate] also has `lower` and `upper`, the edges of its simultaneous band; `level`
    in the metadata is nominal. The standard deviation is that of the field; `noise`, the variance of measurements, is in the
    metadata. Numbers are of the operator's dtype, float32 if it has GELU activations or convolutions, which ONNX Runtime lacks
    in float64.
    Values are not checked in the file: infinite values, or values on another domain, give wrong results without an error.

    All arithmetic is real, and transforms are matrix products for any number of modes, so no runtime needs complex
    numbers or Fourier transforms. Before it is in place the file is run by ONNX Runtime and compared with PyTorch.

    Args:
        thing: An operator, ours or any other module, exported in evaluation mode; or a predictor of a last layer or of weight
            samples, calibrated by `calibrate`, `VarianceScale` or not. It is not changed.
        path: Where to; an existing file is replaced in one step.
        example: Input samples, one at least; their grid is that of the file, their values serve the comparison.
        query: Where to evaluate, any grid; the example's by default.

    Raises:
        UnsupportedError: If it cannot be exported; the message gives the reason and alternatives.
        DataError: If there is no sample in the example, or it is not finite.
        GridError: If it lives on another domain than the training inputs, or the query is no grid.
        FileError: If the folder cannot be written to.
        MissingPackageError: If the extra `onnx` is not installed.

    Examples:
        >>> import tempfile, onnxruntime, probneural as pn
        >>> operator = pn.operators.FNO(1, 1, modes=(2,), width=2, depth=1)
        >>> inputs = pn.Field(torch.zeros(1, 1, 8), Grid.uniform(8))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     to_onnx(operator, f"{folder}/operator.onnx", example=inputs)
        ...     session = onnxruntime.InferenceSession(f"{folder}/operator.onnx")
        >>> session.run(["output"], {"values": torch.zeros(5, 1, 8).numpy()})[0].shape
        (5, 1, 8)
    """
    path = check_path(path, "path")
    # torch.onnx needs onnxscript: fail before the work begins
    onnxruntime, _ = (optional(name, "to_onnx", extra="onnx") for name in ("onnxruntime", "onnxscript"))
    program = traced(thing, example, query, is_for_onnx=True)
    payload = _onnx_bytes(program)
    try:
        session = onnxruntime.InferenceSession(payload, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime has one class per error code
        got, remedy = str(error), "export operator.float(), or a predictor fitted on it: ONNX Runtime has no GELU in float64"
        raise UnsupportedError(expected="operations that ONNX Runtime has in this dtype", got=got, remedy=remedy) from error
    program.check(lambda values: [torch.from_numpy(array) for array in session.run(None, {"values": values.numpy()})])
    atomic.write(path, payload)


def _onnx_bytes(program: Program) -> bytes:
    try:
        with quiet():
            converted = torch.onnx.export(
                program.exported,
                (program.example,),
                dynamo=True,
                input_names=["values"],
                output_names=[_OUTPUT + name for name in program.outputs],
                opset_version=_OPSET,
                optimize=False,  # it takes constants below 1e-8 for zero, which they need not be; runtimes optimise anyway
                verbose=False,
            )
        assert converted is not None  # no path was given
        model = converted.model_proto
    except Exception as error:  # the exporter's own errors are private
        raise UnsupportedError(
            expected="operations that ONNX has",
            got=f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}",
            remedy="replace what the message names, or use to_torch_export",
        ) from error
    _rename(model.graph, {name: name + _INNER for name in program.outputs})  # an operation within may be called `mean` too
    _rename(model.graph, {_OUTPUT + name: name for name in program.outputs})
    for node in model.graph.node:
        del node.metadata_props[:]  # where in the source it comes from: larger than the program, and nobody's business
    model.metadata_props.add(key=KEY, value=program.metadata)
    if model.ByteSize() > _LARGEST:
        raise UnsupportedError(
            expected="at most 2 GB in an ONNX file", got=f"{model.ByteSize() / 1e9:.1f} GB", remedy="use to_torch_export"
        )
    payload: bytes = model.SerializeToString()
    return payload


def _rename(graph: Any, names: Mapping[str, str]) -> None:
    """Give values of an ONNX graph other names, wherever they occur."""
    for node in graph.node:
        for values in (node.input, node.output):
            values[:] = [names.get(name, name) for name in values]
    for value in (*graph.output, *graph.value_info, *graph.initializer):
        value.name = names.get(value.name, value.name)


def to_torch_export(
    thing: nn.Module | Predictor, path: str | os.PathLike[str], *, example: Field, query: Grid | None = None
) -> None:
    """Write an operator, or moments and band of a predictor, as a program for `torch.export.load`.

    Input, outputs and their units are those of [`to_onnx`][probneural.export.to_onnx], in the order given there:
    `torch.export.load(path).module()(values)` is a tensor or a tuple. Python and PyTorch are needed to run it, or to compile it
    for something else; this library is not. The description of the file is its extra file `probneural`.

    Args:
        thing: An operator or a predictor, as for ONNX; the program runs on its device.
        path: Where to, a name that ends in `.pt2`; an existing file is replaced in one step.
        example: Input samples, one at least; their grid is that of the file, their values serve the comparison.
        query: Where to evaluate, any grid; the example's by default.

    Raises:
        UnsupportedError: If it cannot be exported; the message gives the reason and alternatives.
        ArgumentError: If the name ends otherwise.
        DataError: If there is no sample in the example, or it is not finite.
        GridError: If it lives on another domain than the training inputs, or the query is no grid.
        FileError: If the folder cannot be written to.
    """
    path = check_path(path, "path")
    if path.suffix != ".pt2":
        raise ArgumentError(expected="a name that ends in .pt2", got=path.name, remedy="PyTorch loads no other")
    program = traced(thing, example, query)
    stream = io.BytesIO()
    with quiet():
        torch.export.save(program.exported, stream, extra_files={KEY: program.metadata})
    atomic.write(path, stream.getvalue())
