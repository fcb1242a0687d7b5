"""Save and load operators and fitted objects, bit for bit: one safetensors file, written atomically, never a pickle.

Everything is kept as what its constructor takes: a registered class holds, or gives as a property, each of its
constructor's arguments under the argument's own name. Those can be numbers, texts, tensors, operators, and what is registered
in its turn, so a calibrated predictor is a file's worth of nested arguments. Operators of this library are rebuilt from their
configuration; of any other module a file holds the state, and whoever loads it brings the module.

The annotations of these constructors are the schema of files. What a file says is compared with them, completely, before
anything is built: types, names, the shapes of tensors, and that every tensor has its place.
"""

from probneural.storage.files import load, save

__all__ = ["load", "save"]

__dir__ = __all__.copy
