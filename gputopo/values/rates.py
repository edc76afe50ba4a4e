"""The samples of a session that can be judged: large copies, one number a path."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from gputopo.values.bandwidth import Kind, Pair, Path, Sample, gpu_of, node_of
from gputopo.values.machine import Machine

Key = TypeVar("Key")


def judged(samples: Iterable[Sample]) -> Iterator[Sample]:
    """Return the samples that ran alone and whose copies were large enough to show the link.

    Copies within a GPU share nothing: a group of them is only the table of a tool. Of several runs that
    disagree only one that is below its limit in every run.
    """
    return (
        sample
        for sample in samples
        if (sample.group is None or sample.kind == "d2d_local")
        and sample.is_large
        and (sample.runs_agree or max(run.value for run in sample.runs) < sample.floor_gb_per_s)
    )


def host_copies(samples: Iterable[Sample], kind: Kind, machine: Machine) -> dict[int, Sample]:
    """Return the fastest pinned copy of each GPU from (h2d) or to (d2h) the memory of its own node.

    Where several were taken (sizes, runs, NUMA nodes where the GPU's node is unknown), the
    fastest shows what the link carries.
    """
    found: dict[int, Sample] = {}
    for sample in judged(samples):
        gpu = gpu_of(sample.destination if kind == "h2d" else sample.source)
        if gpu is None or sample.kind != kind or sample.pinned is False or not sample.is_by_copy_engine:
            continue
        if not is_far(sample, gpu, machine):
            _keep_faster(found, gpu, sample)
    return found


def host_rates(samples: Iterable[Sample], kind: Kind, machine: Machine) -> dict[int, float]:
    """Return the rates in GB/s of `host_copies` by GPU."""
    return {gpu: sample.rate for gpu, sample in host_copies(samples, kind, machine).items()}


def pair_copies(samples: Iterable[Sample], kind: Kind, path: Path | None = None) -> dict[Pair, Sample]:
    """Return the fastest copy of each ordered pair of GPUs; `path` counts for `bidirectional` only.

    Those read by the destination's copy engine where no pair has others.
    """
    written, read = dict[Pair, Sample](), dict[Pair, Sample]()
    for sample in judged(samples):
        pair = sample.pair
        if pair is None or sample.kind != kind or (kind == "bidirectional" and sample.path != path):
            continue
        if sample.is_by_copy_engine:
            _keep_faster(written, pair, sample)
        elif sample.method == "copy_engine_read":
            _keep_faster(read, pair, sample)
    return written or read


def is_far(sample: Sample, gpu: int, machine: Machine) -> bool:
    """Return whether the host memory of a copy is known to lie on another node than the GPU."""
    near = next((one.numa_node for one in machine.gpus if one.index == gpu), None)
    node = memory_node(sample)
    return near is not None and node is not None and near >= 0 and node != near


def memory_node(sample: Sample) -> int | None:
    """Return the node of the host memory of a copy, None where it was not bound or is unknown."""
    if sample.numa_node is not None:
        return sample.numa_node
    node = node_of(sample.source)
    return node if node is not None else node_of(sample.destination)


def _keep_faster(found: dict[Key, Sample], key: Key, sample: Sample) -> None:
    if key not in found or sample.rate > found[key].rate:
        found[key] = sample
