"""Data sets of pairs of fields, their times, and the records of their use in training."""

from probneural.pairs.field_pairs import Dataset, FieldPairs, FieldSource
from probneural.pairs.field_pairs import Paired as Paired
from probneural.pairs.field_pairs import batches as batches
from probneural.pairs.field_pairs import check_dataset as check_dataset
from probneural.pairs.splits import Rows
from probneural.pairs.splits import divided_rows as divided_rows
from probneural.pairs.splits import evenly_spread_rows as evenly_spread_rows
from probneural.pairs.splits import select_groups as select_groups
from probneural.pairs.splits import split_order as split_order
from probneural.pairs.splits import split_rows as split_rows

__all__ = ["Dataset", "FieldPairs", "FieldSource", "Rows"]

__dir__ = __all__.copy
