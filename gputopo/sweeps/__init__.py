"""The cells of a sweep: the file that describes them, and the combinations that a machine can run."""

from gputopo.sweeps.expand import CellBox, expand_matrix
from gputopo.sweeps.matrix import IMAGENET, MADE, PRESETS, Matrix, matrix_source, parse_matrix

__all__ = [
    "IMAGENET",
    "MADE",
    "PRESETS",
    "CellBox",
    "Matrix",
    "expand_matrix",
    "matrix_source",
    "parse_matrix",
]
