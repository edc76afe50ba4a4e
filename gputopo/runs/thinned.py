"""A few of many: items evenly spread over a stream of any length, in bounded memory."""

from typing import Generic, TypeVar

T = TypeVar("T")


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
