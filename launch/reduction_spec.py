"""What a process that times one reduction is told, and what it tells; and the table of all methods.

To add a method: a line in `METHODS`, and if its algorithm is new, a function in
`gputopo.launch.core.reduction_methods.ALGORITHMS`. This module does not load TensorFlow.
"""

import difflib

import msgspec

from gputopo.errors import UsageError
from gputopo.launch.spec import Backend, RunSpec


class Method(msgspec.Struct, frozen=True, kw_only=True):
    """One way to reduce: a name for users, the algorithm that builds its ops, and that algorithm's options.

    `algorithm` is a key of `ALGORITHMS`, `options` are its keyword arguments. `gpus_only`: why it is not
    there on CPU devices. `even_only`: why it cannot be used for an odd number of devices.
    """

    name: str
    algorithm: str
    says: str
    options: dict[str, str | int] = {}
    gpus_only: str | None = None
    even_only: str | None = None

    def why_not(self, backend: Backend, devices: int) -> str | None:
        """Say why it cannot be used there, None if it can."""
        if self.gpus_only is not None and backend != "gpu":
            return self.gpus_only
        return self.even_only if devices % 2 else None


# Seen on TensorFlow 2.21: both halves of the list of devices get n // 2 of them. No error, wrong sums.
_LOSES_ONE = (
    "TensorFlow's hierarchical copy silently loses the gradients of one device where their number is odd"
)
# Seen on TensorFlow 2.21: the collective takes the hint on CPUs and quietly uses its ring.
_NO_NCCL = "NCCL reduces between GPUs only"

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(name="copy", algorithm="copy", says="copied to one device, added, copied back; taking turns"),
        Method(
            name="ring",
            algorithm="collective",
            says="TensorFlow's collective, as a ring",
            options={"hint": "ring"},
        ),
        Method(
            name="nccl",
            algorithm="collective",
            says="TensorFlow's collective, by NCCL",
            options={"hint": "nccl"},
            gpus_only=_NO_NCCL,
        ),
        Method(
            name="nccl_op",
            algorithm="nccl_op",
            says="TensorFlow's older op for NCCL (NcclAllReduce)",
            gpus_only=_NO_NCCL,
        ),
        Method(
            name="hierarchical",
            algorithm="hierarchical",
            says="tf.distribute.HierarchicalCopyAllReduce, gradients packed as it does by default",
            options={"packs": 1},
            even_only=_LOSES_ONE,
        ),
        Method(name="one_device", algorithm="one_device", says="tf.distribute.ReductionToOneDevice"),
        Method(name="pscpu", algorithm="pscpu", says="added up on the CPU, sent back to all"),
    )
}


def require(name: str) -> Method:
    """Give the method of that name. Raises UsageError that names the nearest ones."""
    if name in METHODS:
        return METHODS[name]
    near = difflib.get_close_matches(name.lower(), METHODS, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"the methods are: {', '.join(METHODS)}"
    raise UsageError(f"there is no reduction '{name}'", hint)


class ReductionJob(msgspec.Struct, frozen=True, kw_only=True):
    """What one process shall time. Of `run` its model, devices and backend count."""

    run: RunSpec
    method: Method
    repeats: int
    warm_up: int


class Alive(msgspec.Struct, frozen=True, kw_only=True, tag="alive"):
    """A sign of life: what comes next, in words."""

    next: str


class Timed(msgspec.Struct, frozen=True, kw_only=True, tag="timed"):
    """The outcome: microseconds of every repeat, and of a call that reduces nothing (median).

    `bytes`: of one replica's gradients.
    """

    bytes: int
    repeats_us: tuple[float, ...]
    fixed_cost_us: float


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """Why there is no outcome, in one line.

    `wrong_data`: it ran and its sums were wrong. `for_all`: every other method would be refused as well.
    """

    says: str
    wrong_data: bool = False
    for_all: bool = False


Message = Alive | Timed | Refused
