"""A few of many: items evenly spread over a stream of any length, in bounded memory; samples, in a file."""

from typing import Generic, TypeVar

from gputopo.values.run.events import Sample

T = TypeVar("T")

# Samples of a run that are written whole: the first hour at two a second. Ours.
ALL_SAMPLES = 7200
# Samples that are written or left out together: what is asked least often (probes/sampling) is asked
# once in them. Ours.
BLOCK_SAMPLES = 40


class Thinned(Generic[T]):
    """All items of a stream up to `capacity`, then every second, fourth, eighth; always the first.

    `seen`: how many there were. A median over them is one over a sample of the stream.
    """

    def __init__(self, capacity: int) -> None:
        self.seen = 0
        self.items: list[T] = []
        self._capacity = capacity
        self._every = 1

    def add(self, item: T) -> None:
        """Add the next item."""
        if self.seen % self._every == 0:
            if len(self.items) == self._capacity:
                del self.items[1::2]
                self._every *= 2
            if self.seen % self._every == 0:
                self.items.append(item)
        self.seen += 1


class WrittenSamples:
    """Which samples of a run go to its file: each doubling of the run adds as many as half of `ALL_SAMPLES`.

    Then every second block of samples, every fourth and so on. A sample with an Xid error or after a gap is
    always one of them.
    """

    def __init__(self) -> None:
        self._seen = 0

    def has(self, sample: Sample) -> bool:
        """Whether the next sample is written."""
        every = 1 << (self._seen // ALL_SAMPLES).bit_length()
        block, self._seen = self._seen // BLOCK_SAMPLES, self._seen + 1
        return bool(sample.xids) or sample.gap_s is not None or block % every == 0
