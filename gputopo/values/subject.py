"""The subject of a finding, as a value: GPUs, a pair of them, network cards, the driver or the machine."""

import re
from collections.abc import Iterable
from typing import Literal

from gputopo.values.index_ranges import index_ranges, parse_ranges

Kind = Literal["gpus", "link", "nics", "driver", "machine"]
_KINDS: dict[str, Kind] = {"gpu": "gpus", "gpus": "gpus", "link": "link", "nic": "nics", "nics": "nics"}
_KINDS |= {"driver": "driver", "machine": "machine"}
_ENDS = re.compile(r"(-?\d+)(?:-(-?\d+))?")  # a misread number may be negative


class Subject(str):
    """The subject of a finding: `gpu:3`, `gpus:0-2,5`, `link:0-1`, `nic:0`, `driver` or `machine`."""

    @classmethod
    def of_gpus(cls, indices: Iterable[int]) -> "Subject":
        """Return the subject for one GPU or several. Raises ValueError for an empty list."""
        return cls._of("gpu", set(indices))

    @classmethod
    def of_nics(cls, indices: Iterable[int]) -> "Subject":
        """Return the subject for one network card or several. Raises ValueError for an empty list."""
        return cls._of("nic", set(indices))

    @classmethod
    def of_link(cls, a: int, b: int) -> "Subject":
        """Return the subject for the pair of GPUs `a` and `b`, in either order."""
        if a == b:
            raise ValueError(f"a link joins two GPUs, got {a} twice")
        return cls(f"link:{min(a, b)}-{max(a, b)}")

    @classmethod
    def parse(cls, text: str) -> "Subject":
        """Read a subject. Raises ValueError for any other text."""
        kind, _, rest = text.partition(":")
        if text in ("driver", "machine"):
            return cls(text)
        if kind == "link":
            a, dash, b = rest.partition("-")
            if dash and a.isdecimal() and b.isdecimal() and a != b:
                return cls.of_link(int(a), int(b))
        elif kind in _KINDS and (indices := parse_ranges(rest)) is not None:
            return cls._of(kind.removesuffix("s"), set(indices))
        raise ValueError(
            f"'{text}' is no subject such as gpu:3, gpus:0-2,5, link:0-1, nic:0, driver or machine"
        )

    @classmethod
    def _of(cls, noun: str, indices: set[int]) -> "Subject":
        if not indices:
            raise ValueError(f"a subject needs at least one {noun}")
        return cls(f"{noun}{'s' if len(indices) > 1 else ''}:{index_ranges(indices)}")

    @property
    def text(self) -> str:
        """The subject as plain text."""
        return str(self)

    @property
    def kind(self) -> Kind:
        """The kind of devices."""
        return _KINDS[self.partition(":")[0]]

    @property
    def gpus(self) -> tuple[int, ...]:
        """Ascending indices of GPUs in the machine; for a link, its two ends."""
        return self._indices() if self.kind in ("gpus", "link") else ()

    @property
    def nics(self) -> tuple[int, ...]:
        """Ascending indices of network cards."""
        return self._indices() if self.kind == "nics" else ()

    def _indices(self) -> tuple[int, ...]:
        ends = [(int(low), int(high or low)) for low, high in _ENDS.findall(self.partition(":")[2])]
        if self.kind == "link":
            return ends[0]
        return tuple(index for low, high in ends for index in range(low, high + 1))


DRIVER = Subject("driver")
MACHINE = Subject("machine")
