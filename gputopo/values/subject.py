"""What a finding is about, as a value: GPUs, a pair of them, network cards, the driver or the machine."""

from collections.abc import Iterable
from typing import Literal, NoReturn

from gputopo.values.index_ranges import index_ranges, parse_ranges

Kind = Literal["gpus", "link", "nics", "driver", "machine"]


class Subject:
    """What a finding is about, immutable. In JSON: its `text` (of a dataclass msgspec writes the fields).

    `gpus`: ascending indices in the machine; one or more of kind "gpus", the two ends of a "link", else none.
    `nics`: those of network cards of kind "nics".
    """

    __slots__ = ("gpus", "kind", "nics")
    kind: Kind
    gpus: tuple[int, ...]
    nics: tuple[int, ...]

    def __init__(self, kind: Kind, gpus: tuple[int, ...] = (), nics: tuple[int, ...] = ()) -> None:
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "gpus", gpus)
        object.__setattr__(self, "nics", nics)

    @classmethod
    def of_gpus(cls, indices: Iterable[int]) -> "Subject":
        """Return the subject for one GPU or several. Raises ValueError if there is none."""
        gpus = tuple(sorted(set(indices)))
        if not gpus:
            raise ValueError("a subject of GPUs needs at least one")
        return cls("gpus", gpus)

    @classmethod
    def of_nics(cls, indices: Iterable[int]) -> "Subject":
        """Return the subject for one network card or several. Raises ValueError if there is none."""
        nics = tuple(sorted(set(indices)))
        if not nics:
            raise ValueError("a subject of network cards needs at least one")
        return cls("nics", nics=nics)

    @classmethod
    def of_link(cls, a: int, b: int) -> "Subject":
        """Return the subject for the pair of GPUs `a` and `b`, in either order."""
        if a == b:
            raise ValueError(f"a link joins two GPUs, got {a} twice")
        return cls("link", (min(a, b), max(a, b)))

    @classmethod
    def parse(cls, text: str) -> "Subject":
        """Read what `text` returns. Raises ValueError for anything else."""
        if text == "driver":
            return DRIVER
        if text == "machine":
            return MACHINE
        kind, _, rest = text.partition(":")
        if kind == "link":
            a, dash, b = rest.partition("-")
            if dash and a.isdecimal() and b.isdecimal() and a != b:
                return cls.of_link(int(a), int(b))
        elif kind in ("gpu", "gpus") and (gpus := parse_ranges(rest)) is not None:
            return cls("gpus", gpus)
        elif kind in ("nic", "nics") and (nics := parse_ranges(rest)) is not None:
            return cls("nics", nics=nics)
        raise ValueError(
            f"'{text}' is no subject such as gpu:3, gpus:0-2,5, link:0-1, nic:0, driver or machine"
        )

    @property
    def text(self) -> str:
        """`gpu:3`, `gpus:0-2,5`, `link:0-1`, `nic:0`, `driver` or `machine`."""
        if self.kind == "link":
            return f"link:{self.gpus[0]}-{self.gpus[1]}"
        if self.kind == "gpus":
            return f"gpu{'s' if len(self.gpus) > 1 else ''}:{index_ranges(self.gpus)}"
        if self.kind == "nics":
            return f"nic{'s' if len(self.nics) > 1 else ''}:{index_ranges(self.nics)}"
        return self.kind

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Subject.parse({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Subject) and self._parts() == other._parts()

    def __hash__(self) -> int:
        return hash(self._parts())

    def _parts(self) -> tuple[Kind, tuple[int, ...], tuple[int, ...]]:
        return self.kind, self.gpus, self.nics

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a subject is immutable: {name}")


DRIVER = Subject("driver")
MACHINE = Subject("machine")


def subjects_in_words(subjects: Iterable[Subject]) -> str:
    """Return several subjects in one text, those of one kind joined: `gpu:0-3,5, driver`."""
    by_kind: dict[str, list[Subject]] = {}
    for subject in subjects:
        same = by_kind.setdefault(subject.text.partition(":")[0], [])
        same += [subject] if subject not in same else []
    return ", ".join(_joined(kind, same) for kind, same in by_kind.items())


def _joined(kind: str, subjects: list[Subject]) -> str:
    if kind in ("gpu", "gpus"):
        return f"{kind}:{index_ranges(gpu for subject in subjects for gpu in subject.gpus)}"
    if kind in ("nic", "nics"):
        return f"{kind}:{index_ranges(nic for subject in subjects for nic in subject.nics)}"
    first, *others = (subject.text for subject in subjects)
    return ",".join([first, *(text.partition(":")[2] for text in others)])
