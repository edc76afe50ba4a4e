"""The cells of a sweep: the file that describes them, and the combinations that a machine can run."""

from gputopo.sweeps.expand import CellBox, Expanded, expand_matrix
from gputopo.sweeps.matrix import (
    IMAGENET,
    MADE,
    PRESETS,
    Matrix,
    MatrixTable,
    Value,
    When,
    matrix_source,
    parse_matrix,
)

__all__ = [
    "IMAGENET",
    "MADE",
    "PRESETS",
    "CellBox",
    "Expanded",
    "Matrix",
    "MatrixTable",
    "Value",
    "When",
    "expand_matrix",
    "matrix_source",
    "parse_matrix",
]
