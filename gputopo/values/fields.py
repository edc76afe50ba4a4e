"""The declaration of a fact of a machine, beside the type of its field; the fields of a value found by path.

What treats all facts alike reads it here: merging captures, comparing readings, words for a person, the
readers of `nvidia-smi` and the metrics for Prometheus. A field within a field takes unit, stability and
labels of the outer one where it declares none, and its words follow those of the outer one.
"""

import csv
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import msgspec


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all values: immutable, fields by name."""


SmiKind = Literal[
    "action",
    "active",
    "address",
    "banks",
    "count",
    "device",
    "fabric",
    "lower",
    "mask",
    "mode",
    "process",
    "program",
    "pstate",
    "step",
    "subsystem",
    "switch",
    "us",
    "uuid",
    "version",
    "width",
    "words",
    "yes",
    "yes as 1",
]
SmiNames = str | tuple[str, ...]


class Smi(NamedTuple):
    """Names of a fact in `nvidia-smi`: `-q -x`, `-q` and `--query-gpu`; () where a dialect does not have it.

    As of drivers 319 to 610 (`--help-query-gpu` of 590). A name is a path of tags (`pci/pci_bus_id`) or of
    headings (`PCI/Bus Id`), in any case. Where driver eras differ all names are listed; the first that has a
    value counts. `kind`: how the value is written, see gputopo.captures.smi.values; None: as a number with
    the fact's unit.
    """

    kind: SmiKind | None = None
    xml: SmiNames = ()
    text: SmiNames = ()
    csv: SmiNames = ()


class Metric(NamedTuple):
    """The series of a fact for Prometheus, without the prefix. `by`: label of a dictionary's keys."""

    name: str
    help: str
    by: str = ""


class Fact(NamedTuple):
    """What a field of a value is to a person and to the formats that have it.

    `stability`: "fixed" by the hardware; a "setting" changes when somebody changes it, or with a repair or a
    reboot; a "state" changes by itself, which is no contradiction between two captures, but worth reporting;
    "volatile" passes from second to second. `peers`: GPUs of one model agree on it unless something is wrong
    (gputopo.findings.peers has the noise). `tolerance`, a share, and `same`: when values of two sources are
    the same, where that is not equality.
    """

    words: str | None = None  # None: the field's name
    unit: str = ""
    stability: Literal["fixed", "setting", "state", "volatile", ""] = ""  # "": of the outer field
    counter: bool = False  # only rises
    peers: bool = False
    info: bool = False  # a label of the device's `_info` series, where it is words
    labels: Mapping[str, str] = {}  # of its own series
    smi: Smi | None = None
    smi_within: Mapping[str, Smi] = {}  # of the fields within, whose class stands for several facts
    metric: Metric | None = None
    tolerance: float = 0.0
    same: Callable[[str, str], bool] | None = None
    within: str | None = None  # what words of the fields within follow; None: those of this one


_ADDRESS = re.compile(
    r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([01]?[0-9a-f])\.([0-7])", re.IGNORECASE | re.ASCII
)


def kernel_address(text: str) -> str | None:
    """Write a PCI address as the kernel does (`0000:05:00.0`), domain 0 if left out; None if it is none.

    The domain has four digits, more only where it needs them: NVML's `00000000:05:00.0` is `0000:05:00.0`.
    """
    match = _ADDRESS.fullmatch(text.strip())
    if match is None:
        return None
    domain, bus, device, function = (int(part or "0", 16) for part in match.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function}"


def same_address(a: str, b: str) -> bool:
    """Return whether two PCI addresses are the same; the domain may have four or eight digits."""
    return short_address(a) == short_address(b)


def short_address(address: str) -> str:
    """Return a PCI address in lower case with a domain without leading zeros: equal for equal addresses."""
    *domain, bus, slot = f":{address.lower()}".rsplit(":", 2)
    return f"{''.join(domain).strip(':').lstrip('0')}:{bus}:{slot}"


def same_product(a: str, b: str) -> bool:
    """Return whether two names are of one product: drivers since 465 put the maker's name before it."""
    return a.removeprefix("NVIDIA ") == b.removeprefix("NVIDIA ")


def same_peer_access(a: str, b: str) -> bool:
    """Return whether two statuses agree: CUDA reports no more than NOT_SUPPORTED."""
    return "OK" not in (a, b) if "NOT_SUPPORTED" in (a, b) else a == b


def rows_of(module: str, name: str) -> list[dict[str, str]]:
    """Return the rows of a CSV table below the folder of a module, which is given by its `__file__`."""
    with (Path(module).parent / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """A field of a value by its path, with what it inherits from the fields around it."""

    path: str  # `clocks_mhz.memory.max`, `nvlinks[].active`
    fact: Fact
    words: str  # with `{}` for each index
    unit: str = ""
    stability: str = "setting"
    counter: bool = False
    smi: Smi | None = None
    metric: Metric | None = None
    labels: Mapping[str, str] = {}
    default: Any = None  # what it is where nothing is known of it
    leaf: bool = True  # neither a struct nor several values

    def same(self, a: Any, b: Any) -> bool:
        """Return whether two sources report the same value."""
        if a == b:
            return True
        if self.fact.tolerance:
            return bool(abs(a - b) <= self.fact.tolerance * max(a, b))
        return self.fact.same is not None and self.fact.same(a, b)

    def is_known(self, value: Any) -> bool:
        """Return whether a value is one, not what stands there when nothing is known."""
        return value is not None and value != "" and value != self.default

    def value_in_words(self, value: object) -> str:
        """Return a value with its unit: `3200 MHz`, `x16`, `30%`, `on`."""
        if value is None:
            return "not reported"
        if isinstance(value, bool):
            return "on" if value else "off"
        if not isinstance(value, int | float):
            return str(value)
        number = f"{value:g}" if isinstance(value, float) else str(value)
        if self.unit in ("lanes", "%"):
            return f"x{number}" if self.unit == "lanes" else f"{number}%"
        return f"{number} {self.unit}".rstrip()


@functools.cache
def fields_of(kind: type[msgspec.Struct]) -> dict[str, Field]:
    """Return all fields of a value's class and of the values within it, by path, outer ones first."""
    return {field.path: field for field in _fields_within(kind, Field(path="", fact=Fact(), words=""))}


def field_at(kind: type[msgspec.Struct], path: str) -> Field:
    """Return the field at a path within a value, `nvlinks[2].active`; of a dictionary's key, the dictionary.

    A path that the class does not have is a field with that name.
    """
    fields = fields_of(kind)
    known = _INDEX.sub("[]", path)
    while known not in fields and "." in known:
        known = known.rpartition(".")[0]
    return fields.get(known) or Field(path=path, fact=Fact(), words=_spaced(path))


def path_in_words(kind: type[msgspec.Struct], path: str) -> str:
    """Return a path within a value in words: `memory clock max`, `NVLink 2 speed`."""
    field = field_at(kind, path)
    beyond = _INDEX.sub("[]", path).removeprefix(field.path)
    words = field.words
    for index in _INDEX.findall(path):
        words = words.replace("{}", index, 1)
    return words + _spaced(beyond).replace(".", " ")


_INDEX = re.compile(r"\[([^\]]*)\]")
_PLURAL = re.compile(r"(?<=s)es$|s$")


def _fields_within(kind: type[msgspec.Struct], outer: Field) -> Iterator[Field]:
    for declared in msgspec.structs.fields(kind):
        name = declared.name
        fact = next((one for one in get_args(declared.type) if isinstance(one, Fact)), Fact())
        inner, listed = _struct_in(declared.type)
        is_unset = declared.default is msgspec.NODEFAULT or inner is not None
        whole = outer.words if outer.fact.within is None else outer.fact.within
        field = Field(
            path=f"{outer.path}.{name}".lstrip("."),
            fact=fact,
            words=f"{whole} {_spaced(name) if fact.words is None else fact.words}".lstrip(),
            unit=fact.unit or outer.unit,
            stability=fact.stability or outer.stability,
            counter=fact.counter or outer.counter,
            smi=outer.fact.smi_within.get(name, fact.smi),
            metric=fact.metric,
            labels={**outer.labels, **fact.labels},
            default=None if is_unset else declared.default,
            leaf=inner is None,
        )
        yield field
        if inner is None:
            continue
        if listed:
            words = f"{_PLURAL.sub('', field.words)} {{}}"
            field = msgspec.structs.replace(field, path=f"{field.path}[]", words=words)
            yield field
        yield from _fields_within(inner, field)


def _struct_in(annotation: Any) -> tuple[type[msgspec.Struct] | None, bool]:
    """Return the class of values that an annotation holds, and whether it holds several."""
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return annotation, False
    origin = get_origin(annotation)
    inner = get_args(annotation)[:1] if origin in (Annotated, tuple) else get_args(annotation)
    found = next((kind for one in inner if (kind := _struct_in(one))[0] is not None), (None, False))
    return found[0], found[1] or origin is tuple


def _spaced(name: str) -> str:
    return name.replace("_", " ")
