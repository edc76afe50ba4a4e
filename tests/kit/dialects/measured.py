"""Machines for written measurements: their GPUs and peer access, and the numbers of the samples."""

from collections.abc import Callable, Iterable
from itertools import combinations
from random import Random

import msgspec

from gputopo.values.bandwidth import Bandwidth, CopyLatency, Sample, Samples
from gputopo.values.machine import Gpu, Link, Machine

_NAMES = ("GeForce GTX 1070", "GeForce GTX 1080 Ti", "Tesla K80", "NVIDIA A100-SXM4-80GB", "Graphics Device")

Numbers = Callable[[], float]


def machine(random: Random) -> Machine:
    """Return up to 9 GPUs with random names, domains, peer access and, for CUDA, another order."""
    count = random.randint(1, 9)
    faster = list(range(count))
    random.shuffle(faster)
    # CUDA's numbers are known only if at least one GPU has a different number there.
    order: list[int | None] = [None] * count if faster == sorted(faster) else [*faster]
    domain = random.choice((0, 1, 0xD463))
    gpus = [
        Gpu(
            index=index,
            cuda_index=order[index],
            name=random.choice(_NAMES),
            pci_address=f"{domain:04x}:{3 + 0x1B * index:02x}:{random.choice((0, 0, 0x1F)):02x}.0",
        )
        for index in range(count)
    ]
    share = random.choice((0.0, 0.5, 1.0))
    links = [_link(a, b, random.random() < share) for a, b in combinations(range(count), 2)]
    return Machine(source="random", gpus=tuple(gpus), links=tuple(links))


def _link(a: int, b: int, access: bool) -> Link:
    if access:
        return Link(a=a, b=b, p2p_read="OK", p2p_write="OK")
    return Link(
        a=a, b=b, p2p_read="NOT_SUPPORTED", p2p_write="NOT_SUPPORTED", p2p_reason="CUDA: cannot access peer"
    )


def by_cuda_number(written: Machine) -> list[Gpu]:
    """Return the GPUs in the order in which a CUDA program numbers them."""
    return sorted(written.gpus, key=lambda gpu: gpu.index if gpu.cuda_index is None else gpu.cuda_index)


def has_access(written: Machine, one: Gpu, other: Gpu) -> bool:
    """Return whether one GPU can access another's memory, or its own."""
    link = written.link(one.index, other.index)
    return one.index == other.index or (link is not None and link.p2p_read == "OK")


def numbers(random: Random, step: float = 0.01, max_steps: int = 999_999) -> Numbers:
    """Return a source of the numbers that a tool can print, from one `step` to `max_steps` steps."""
    decimals = len(f"{step:g}".partition(".")[2])
    return lambda: round(random.choice((1, max_steps, random.randint(1, max_steps))) * step, decimals)


def with_samples(written: Machine, samples: Iterable[Sample], source: str) -> Machine:
    """Return a machine with these samples and no others."""
    return msgspec.structs.replace(written, bandwidth=Bandwidth(source=source, samples=Samples(samples)))


class Pool:
    """The samples of a machine by what they measure; each is printed once, in their order."""

    def __init__(self, written: Machine) -> None:
        assert written.bandwidth is not None
        self._left: dict[Sample, list[float]] = {}
        for sample in written.bandwidth.samples:
            self._left.setdefault(without_number(sample), []).append(number_of(sample))

    def take(self, blank: Sample) -> float:
        """Return the number of the next sample of this kind. Raises KeyError if the machine has none left."""
        return self._left[blank].pop(0)


def number_of(sample: Sample) -> float:
    """Return a sample's GB/s, or its latency in microseconds."""
    assert sample.value is not None
    return sample.value


def without_number(sample: Sample) -> Sample:
    """Return a sample without its measured number."""
    if isinstance(sample, CopyLatency):
        return msgspec.structs.replace(sample, median_us=0.0)
    return msgspec.structs.replace(sample, median_gb_per_s=None)


def with_number(blank: Sample, value: float) -> Sample:
    """Return a sample with its GB/s, or its latency in microseconds."""
    if isinstance(blank, CopyLatency):
        return msgspec.structs.replace(blank, median_us=value)
    return msgspec.structs.replace(blank, median_gb_per_s=value)
