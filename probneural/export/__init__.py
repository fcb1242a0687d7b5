"""Export operators and calibrated predictors to files that run without this library: ONNX and torch.export.

A file evaluates an operator, or mean, standard deviation and band of a predictor, on a fixed grid, for any number of
samples. Inputs and outputs are described in JSON, under the key `probneural`. PyTorch reads back the weights that
[`save`][probneural.storage.save] writes; these files are for programs that have neither this library nor, with ONNX, Python.
"""

from probneural.export.programs import to_onnx, to_torch_export

__all__ = ["to_onnx", "to_torch_export"]

__dir__ = __all__.copy
