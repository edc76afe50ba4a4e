"""Published images/sec for training on several GPUs: `data/published.csv`, and the machines used.

Every row is one measurement; its source is in `PUBLISHED_SOURCES`. No row is about the user's GPUs. Cells
that a source lists without a result are in `data/published_missing.csv`.
"""

import functools
from collections.abc import Mapping
from importlib import resources
from itertools import combinations
from typing import TypeVar

import msgspec

from gputopo.values.fields import rows_of
from gputopo.values.machine import Gpu, Hop, Link, Machine, Pcie
from gputopo.values.run.plan import VariableUpdate

_K = TypeVar("_K")

PUBLISHED_SOURCES: Mapping[str, str] = {
    "tensorflow.org": "www.tensorflow.org/performance/benchmarks (2017)",
    "tensorpack": "tensorpack/benchmarks ResNet-MultiGPU (TensorFlow 1.3)",
    "lambda-2018": "LambdaColdStorage/cpu_benchmark (TensorFlow 1.9); the one-GPU figures are those of a "
    "GeForce GTX 1080 Ti of lambda-2020",
    "lambda-2018-09": "LambdaColdStorage/cpu_benchmark (TensorFlow 1.11); one-GPU figures as lambda-2018",
    "rossumai": "rossumai/keras-multi-gpu blog/docs/measurements.md (2017)",
    "rossumai-logs": "rossumai/keras-multi-gpu experiments/tensorflow/tf_cnn_benchmarks/results (2017)",
    "lambda-2020": "lambdal/lambda-tensorflow-benchmark (TensorFlow 1.15 to 2.3, NCCL 2)",
}


class PublishedCell(msgspec.Struct, frozen=True, kw_only=True):
    """The conditions of a cell in a published table.

    `data`: "synthetic", "real", "real-distorted" (augmented on the CPU), "synthetic-cpu" and
    "synthetic-python" (made there). `gpus`: the first ones if the source has only their number. `ps_device`
    and `all_reduce` are options of `plan`.
    """

    source: str
    machine: str
    program: str
    version: str | None = None
    data: str
    model: str
    batch_per_gpu: int | None = None  # None if the source states `batch`
    batch: int | None = None  # examples per step on all GPUs
    precision: str
    data_format: str | None = None
    xla: bool = False
    gpus: tuple[int, ...]
    variable_update: VariableUpdate | None = None
    ps_device: str | None = None
    all_reduce: str | None = None


class Published(PublishedCell, frozen=True, kw_only=True):
    """One measurement."""

    images_per_sec: float  # on all GPUs together
    single_gpu_images_per_sec: float | None = None  # the same job on one of them, if published
    core_mhz: float | None = None  # the GPU's boost clock, as printed with the result
    note: str | None = None

    @property
    def is_suspect(self) -> bool:
        """Whether the source or a later measurement contradicts it."""
        return bool(self.note and self.note.startswith("suspect"))


class Missing(PublishedCell, frozen=True, kw_only=True):
    """A cell without a result. `reason`: what is known."""

    reason: str


class PublishedMachine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine in the published results that is not bundled.

    `generation`, `width`: each card's link, if less than the card's own. `within`: groups of GPUs by the
    farthest hop inside them, nearest hops first.
    """

    name: str
    gpu: str
    count: int
    source: str
    beyond: Hop  # for all other pairs
    generation: int | None = None
    width: int | None = None
    within: dict[Hop, list[list[int]]] = {}
    nvlinks: dict[int, list[list[int]]] = {}  # groups by number of NVLinks per pair
    p2p: bool | None = None  # whether pairs without NVLink have P2P, if known
    assumed: str | None = None  # facts without a source
    cpu: str | None = None  # its model, if the source has it

    def machine(self) -> Machine:
        """Return this machine as a `Machine`."""
        pcie = Pcie(gen_max=self.generation, width_max=self.width, width_now=self.width)
        gpus = tuple(Gpu(index=index, name=self.gpu, pcie=pcie) for index in range(self.count))
        return Machine(
            source=self.source,
            gpus=gpus,
            links=tuple(self._link(a, b) for a, b in combinations(range(self.count), 2)),
        )

    def _link(self, a: int, b: int) -> Link:
        nvlinks = _group_of(a, b, self.nvlinks) or 0
        known = True if nvlinks else self.p2p
        p2p = None if known is None else "OK" if known else "CNS"
        return Link(
            a=a,
            b=b,
            hop=_group_of(a, b, self.within) or self.beyond,
            nvlinks=nvlinks,
            p2p_read=p2p,
            p2p_write=p2p,
        )


def _group_of(a: int, b: int, groups: Mapping[_K, list[list[int]]]) -> _K | None:
    return next((key for key, sets in groups.items() if any({a, b} <= {*group} for group in sets)), None)


class _Machines(msgspec.Struct, frozen=True, tag_field="schema", tag="gputopo.published_machines/1"):
    machines: tuple[PublishedMachine, ...]


@functools.cache
def published_figures() -> tuple[Published, ...]:
    """Return all measurements, in the order of the table."""
    return msgspec.convert(_rows("published.csv"), tuple[Published, ...], strict=False)


@functools.cache
def published_missing() -> tuple[Missing, ...]:
    """Return the cells without a result, in the order of the table."""
    return msgspec.convert(_rows("published_missing.csv"), tuple[Missing, ...], strict=False)


def _rows(name: str) -> list[dict[str, object]]:
    rows = [
        {name: value for name, value in row.items() if value} for row in rows_of(__file__, f"data/{name}")
    ]
    return [{**row, "gpus": list(map(int, row.get("gpus", "").split()))} for row in rows]


@functools.cache
def published_machines() -> dict[str, PublishedMachine]:
    """Return the machines that are not bundled, by name."""
    data = resources.files("gputopo.reference.data").joinpath("published_machines.json").read_bytes()
    return {machine.name: machine for machine in msgspec.json.decode(data, type=_Machines).machines}
