"""Writing programs to files of two formats, each checked against PyTorch before it is in place."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from probneural.checks import check_integer, check_path, missing
from probneural.distributions import Predictor
from probneural.errors import ArgumentError, UnsupportedError
from probneural.export.programs import KEY, Program, quiet, traced
from probneural.fields import Field
from probneural.grids import Grid
from probneural.training import atomic

_OLDEST_OPSET = 18
"""Of ONNX, that PyTorch's exporter writes."""
_LARGEST = 2**31 - 1
"""Bytes of an ONNX file: it is one protocol buffer."""
_OUTPUT, _INNER = "output.", ".inner"
"""Temporary names of outputs until inner values of the same name are renamed; and the suffix of these."""


def to_onnx(
    thing: nn.Module | Predictor,
    path: str | os.PathLike[str],
    *,
    example: Field,
    query: Grid | None = None,
    opset_version: int = _OLDEST_OPSET,
) -> None:
    """Write an operator, or mean and standard deviation of a predictor, as an ONNX file.

    The file has one input, `values` `(n, c, *grid)` for any n, on the grid of the example. Of an operator it has the output
    `output`, of a predictor `mean` and `standard_deviation`, `(n, c', *query)` each, in physical units. The standard deviation
    is that of the field; `noise`, the variance of measurements, is in the metadata. Numbers are of the operator's dtype.
    Values are not checked in the file: infinite values, or values on another domain, give wrong results without an error.

    All arithmetic is real, and transforms are matrix products for any number of modes, so no runtime needs complex
    numbers or Fourier transforms. Before it is in place the file is run by ONNX Runtime and compared with PyTorch.

    Args:
        thing: An operator, ours or any other module, exported in evaluation mode; or a predictor of a last layer or of weight
            samples, calibrated by `VarianceScale` or not. It is not changed.
        path: Where to; an existing file is replaced in one step.
        example: Input samples, one at least; their grid is that of the file, their values serve the comparison.
        query: Where to evaluate, any grid; the example's by default.
        opset_version: Version of ONNX's operators.

    Raises:
        UnsupportedError: If it cannot be exported; the message gives the reason and alternatives.
        ArgumentError: If `opset_version` is below 18.
        DataError: If there is no sample in the example, or it is not finite.
        GridError: If it lives on another domain than the training inputs, or the query is no grid.
        FileError: If the folder cannot be written to.
        ImportError: If the extra `onnx` is not installed.

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
    path, opset_version = check_path(path, "path"), check_integer(opset_version, "opset_version", least=_OLDEST_OPSET)
    try:
        import onnxruntime
        import onnxscript  # noqa: F401 (torch.onnx needs it: fail before the work begins)
    except ModuleNotFoundError as error:
        raise missing("to_onnx", error, "onnx") from error
    program = traced(thing, example, query, is_for_onnx=True)
    payload = _onnx_bytes(program, opset_version)
    try:
        session = onnxruntime.InferenceSession(payload, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime has one class per error code
        raise UnsupportedError(
            expected="operations that ONNX Runtime has in this dtype", got=str(error), remedy="export an operator in float32"
        ) from error
    program.check(lambda values: [torch.from_numpy(array) for array in session.run(None, {"values": values.numpy()})])
    atomic.write(path, payload)


def _onnx_bytes(program: Program, opset_version: int) -> bytes:
    try:
        with quiet():
            converted = torch.onnx.export(
                program.exported,
                (program.example,),
                dynamo=True,
                input_names=["values"],
                output_names=[_OUTPUT + name for name in program.outputs],
                opset_version=opset_version,
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
            expected="less than 2 GB, as ONNX files are one protocol buffer",
            got=f"{model.ByteSize() / 1e9:.1f} GB",
            remedy="use to_torch_export",
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
    """Write an operator, or mean and standard deviation of a predictor, as a program for `torch.export.load`.

    Input, outputs and their units are those of [`to_onnx`][probneural.export.to_onnx], in the order given there:
    `torch.export.load(path).module()(values)` is a tensor or a pair. Python and PyTorch are needed to run it, or to compile it
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
