"""Reductions of gradients over towers, by name: `name` or `name#K`. `launch` builds them.

`copy` spreads the variables over the towers by bytes (`gputopo.workload.spreading`); `copy-roundrobin` is the
same. Without a specification, tf_cnn_benchmarks adds gradients on the GPUs in alternation, because its
--local_parameter_device is gpu by default; this is `psgpu` here. With cpu it is `pscpu` (variable_mgr.py,
aggregate_gradients_using_copy_with_device_selection). Its names are accepted too: `xring` is `ring`.
"""

import re
from dataclasses import dataclass
from typing import Literal

from gputopo.values.errors import UsageError
from gputopo.values.option import listed, nearest

Backend = Literal["cpu", "gpu"]

MAX_PARTS = 64  # every part adds ops for each variable; a larger number is probably a typing mistake

MEANINGS = {
    "copy": "added on one device per variable and copied back; variables are distributed by size, large ones "
    "are split on GPUs",
    "ring": "added in a ring of copies: each device adds a share of every tensor and passes it on; K "
    "rings at once",
    "hierarchical": "added within groups of close devices, then between the groups' leaders",
    "pscpu": "added on the CPU and sent back to all devices; in K parts",
    "psgpu": "added in parts: each tensor is split into K parts, and each part is added on the next device",
    "collective": "reduced by TensorFlow's collective op in a ring",
    "nccl": "reduced by TensorFlow's collective op with NCCL",
    "nccl_op": "reduced by TensorFlow's older op for NCCL (NcclAllReduce)",
    "tf_hierarchical": "reduced by tf.distribute.HierarchicalCopyAllReduce with its default packing",
    "one_device": "reduced by tf.distribute.ReductionToOneDevice",
}
NAMES = tuple(MEANINGS)
Options = dict[str, str | int | tuple[tuple[int, ...], ...]]
NCCL = "nccl"
_IN_PARTS = ("ring", "pscpu", "psgpu")
_BY_NCCL = (NCCL, "nccl_op")
COLLECTIVES = ("collective", NCCL)
"""Reductions by TensorFlow's collective op, which also works between hosts."""
_ALIASES = {"copy-roundrobin": "copy", "xring": "ring"}

PATTERN = rf"^(({'|'.join(NAMES)})|({'|'.join(_IN_PARTS)})#[1-9][0-9]?)$"
"""The pattern of a reduction in a plan and a spec: the form of `Reduction.written`."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """A reduction, and the number of parts into which it cuts a tensor (1: not cut)."""

    name: str
    parts: int = 1

    @property
    def written(self) -> str:
        """The text of the reduction: `ring`, `ring#2`."""
        return self.name if self.parts == 1 else f"{self.name}#{self.parts}"

    @property
    def is_by_nccl(self) -> bool:
        """Whether NCCL adds the gradients."""
        return self.name in _BY_NCCL

    def why_not(self, backend: Backend, towers: int) -> tuple[str, str] | None:
        """Return why it cannot be used there, and the nearest one that can; None if it can be used."""
        if self.is_by_nccl and backend != "gpu":
            # Observed with TensorFlow 2.21: on CPUs the collective op accepts the hint and silently uses its
            # ring.
            return "NCCL reduces between GPUs only", "collective"
        if self.name == "tf_hierarchical" and towers % 2:
            # Observed with TensorFlow 2.21: both halves of the list of devices get n // 2 of them, without an
            # error.
            return (
                "TensorFlow's hierarchical copy silently loses the gradients of one device if the number of "
                "devices is odd",
                "hierarchical",
            )
        if self.name == "psgpu" and self.parts > towers:
            return f"{self.written} adds on {self.parts} devices, but there are {towers}", f"psgpu#{towers}"
        return None


def options_of(asked: Reduction, groups: tuple[tuple[int, ...], ...] = ()) -> tuple[str, Options]:
    """Return the algorithm of a reduction (a key of `placement.methods.ALGORITHMS`) and its arguments.

    `groups`: groups of towers for the hierarchical reduction.
    """
    if asked.name in COLLECTIVES:
        return "collective", {"hint": "nccl" if asked.name == "nccl" else "ring"}
    if asked.name == "hierarchical":
        return "hierarchical", {"groups": groups}
    return asked.name, {} if asked.parts == 1 else {"parts": asked.parts}


def parse(text: str) -> Reduction:
    """Read `name` or `name#K`, including aliases. Raises UsageError with the nearest or the allowed names."""
    matched = re.fullmatch(r"([^#]*)(?:#(.*))?", text.strip().lower(), re.DOTALL)
    assert matched is not None  # every line matches
    given, parts = matched.groups()
    name = _ALIASES.get(given, given)
    if name not in MEANINGS:
        if "/" in name or ":" in name:
            raise UsageError(
                f"the reduction '{text}' combines several, but gputopo uses one for all gradients",
                f"give one of {', '.join(NAMES)}",
            )
        near = nearest(name, [*NAMES, *_ALIASES])
        hint = f"did you mean {listed(near)}?" if near else f"the reductions are: {', '.join(NAMES)}"
        raise UsageError(f"there is no reduction '{text}'", hint)
    if parts is None:
        return Reduction(name)
    if name not in _IN_PARTS:
        raise UsageError(
            f"{name} takes no number of parts: '{text}'",
            f"remove #{parts}; a number of parts is for {', '.join(_IN_PARTS)}",
        )
    if not (parts.isascii() and parts.isdigit() and 1 <= int(parts) <= MAX_PARTS):
        raise UsageError(
            f"'{text}' has no number of parts after the #", f"give a number from 1 to {MAX_PARTS}: {name}#2"
        )
    return Reduction(name, int(parts))
