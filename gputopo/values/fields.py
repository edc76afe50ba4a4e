"""The declaration of a fact of a machine next to the type of its field, and the lookup of fields by path.

Code that treats all facts alike reads the declarations: merging captures, comparing readings, words for
people, the readers of `nvidia-smi`, and the Prometheus metrics. A field within a field inherits unit,
stability and labels that it does not declare, and its words follow the words of the outer field.
"""

import csv
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import msgspec


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all values: immutable, with named fields."""


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
    """Names of a fact in `nvidia-smi`: `-q -x`, `-q` and `--query-gpu`; () if a format does not have it.

    For drivers 319 to 610 (`--help-query-gpu` of 590). A name is a path of tags (`pci/pci_bus_id`) or of
    headings (`PCI/Bus Id`), in any case. If the name differs between driver versions, all names are listed,
    and the first one with a value is used. `kind`: how the value is written, see gputopo.captures.smi.values;
    None: as a number with the fact's unit.
    """

    kind: SmiKind | None = None
    xml: SmiNames = ()
    text: SmiNames = ()
    csv: SmiNames = ()


class Metric(NamedTuple):
    """The Prometheus series of a fact, without the prefix. `by`: label for the keys of a dictionary."""

    name: str
    help: str
    by: str = ""


class Fact(NamedTuple):
    """How a field of a value is described to people and in other formats.

    `stability`: "fixed": set by the hardware; "setting": changes if somebody changes it, or with a repair or
    a reboot; "state": changes by itself, which is worth reporting but no contradiction between two captures;
    "volatile": changes from second to second. `peers`: GPUs of one model have the same value unless something
    is wrong (gputopo.findings.peers has the noise). `tolerance` (a share) and `same`: when the values of two
    sources are the same, if this is not equality.
    """

    words: str | None = None  # None: the name of the field
    unit: str = ""
    stability: Literal["fixed", "setting", "state", "volatile", ""] = ""  # "": of the outer field
    counter: bool = False  # it only increases
    peers: bool = False
    info: bool = False  # a label of the device's `_info` series, if the value is a text
    labels: Mapping[str, str] = {}  # of the fact's own series
    smi: Smi | None = None
    smi_within: Mapping[str, Smi] = {}  # for the fields within, if their class is used for several facts
    metric: Metric | None = None
    tolerance: float = 0.0
    same: Callable[[str, str], bool] | None = None
    within: str | None = None  # prefix for the words of the fields within; None: the words of this one


_ADDRESS = re.compile(
    r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([01]?[0-9a-f])\.([0-7])", re.IGNORECASE | re.ASCII
)


def kernel_address(text: str) -> str | None:
    """Return a PCI address in the kernel's form (`0000:05:00.0`), or None if the text is not one.

    A missing domain is 0. The domain has four digits, or more if necessary: NVML's `00000000:05:00.0` is
    `0000:05:00.0`.
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
    """Return a PCI address in lower case without leading zeros in the domain: equal for equal addresses."""
    *domain, bus, slot = f":{address.lower()}".rsplit(":", 2)
    return f"{''.join(domain).strip(':').lstrip('0')}:{bus}:{slot}"


def same_product(a: str, b: str) -> bool:
    """Return whether two names are of one product: since 465, drivers put the vendor's name before it."""
    return a.removeprefix("NVIDIA ") == b.removeprefix("NVIDIA ")


def same_peer_access(a: str, b: str) -> bool:
    """Return whether two statuses agree: CUDA only reports NOT_SUPPORTED."""
    return "OK" not in (a, b) if "NOT_SUPPORTED" in (a, b) else a == b


def rows_of(module: str, name: str) -> list[dict[str, str]]:
    """Return the rows of a CSV table below the folder of a module. `module`: the `__file__` of the module."""
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
    default: Any = None  # the value if nothing is known
    leaf: bool = True  # neither a struct nor several values

    def same(self, a: Any, b: Any) -> bool:
        """Return whether two sources report the same value."""
        if a == b:
            return True
        if self.fact.tolerance:
            return bool(abs(a - b) <= self.fact.tolerance * max(a, b))
        return self.fact.same is not None and self.fact.same(a, b)

    def is_known(self, value: Any) -> bool:
        """Return whether a value is known: neither empty nor the default."""
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
    """Return all fields of a class of values and of the values within it, by path, outer ones first."""
    return {field.path: field for field in _fields_within(kind, Field(path="", fact=Fact(), words=""))}


def field_at(kind: type[msgspec.Struct], path: str) -> Field:
    """Return the field at a path within a value, such as `nvlinks[2].active`.

    For a key of a dictionary, return the field of the dictionary. If the class does not have the path, return
    a field with that name.
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
        fact = next((extra for extra in get_args(declared.type) if isinstance(extra, Fact)), Fact())
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
    """Return the class of values in an annotation, and whether it has several."""
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return annotation, False
    origin = get_origin(annotation)
    inner = get_args(annotation)[:1] if origin in (Annotated, tuple) else get_args(annotation)
    first = next((kind for argument in inner if (kind := _struct_in(argument))[0] is not None), (None, False))
    return first[0], first[1] or origin is tuple


def _spaced(name: str) -> str:
    return name.replace("_", " ")
