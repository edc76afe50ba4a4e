"""Addresses of the facts of a machine, and the values at them: `gpus[3].pcie.width_now`."""

import re
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import msgspec

from gputopo.values.fields import field_at
from gputopo.values.machine import Driver, Gpu, GpuProcess, Host, Link, Machine, Nic, NvLink, PciNode

EVERY = "*"
# The class of the values in each field of the machine.
GROUPS: dict[str, type[msgspec.Struct]] = {
    "gpus": Gpu,
    "links": Link,
    "nics": Nic,
    "pci": PciNode,
    "host": Host,
    "driver": Driver,
}

_LISTED = re.compile(r"([a-z_]+)\[([^\]]*)\](?:\.(.*))?", re.DOTALL)
_STEP = re.compile(r"\.?([^.\[\]]+)|\[([^\]]+)\]")
_DEVICE = re.compile(r"\b(gpu|nic):(\d+)")

# Reasons for a missing fact that mean that the card does not have it: NVML's and nvidia-smi's.
DOES_NOT_APPLY = ("NOT_SUPPORTED", "N/A", "Not Supported", "[N/A]", "[Not Supported]")


class FactPath(msgspec.Struct, frozen=True):
    """The parts of an address: the field of the machine, the key in it if it is a list, and the path below.

    `fact` is "" for the whole device. `key` is "" if `group` is not a list (`host`, `driver`).
    """

    group: str
    key: str
    fact: str

    @classmethod
    def parse(cls, text: str) -> "FactPath":
        """Read an address."""
        listed = _LISTED.fullmatch(text)
        if listed is not None:
            return cls(listed[1], listed[2], listed[3] or "")
        group, _, fact = text.partition(".")
        return cls(group, "", fact)

    @property
    def text(self) -> str:
        """The address as it is in JSON."""
        return item(self.group, self.key, self.fact) if self.key else within(self.group, self.fact)

    @property
    def indices(self) -> tuple[int, ...]:
        """The numbers in the key: one for a GPU or NIC, two for a link, none for `*` or a PCI address."""
        numbers = self.key.split("-")
        return tuple(map(int, numbers)) if all(map(str.isdecimal, numbers)) else ()

    def renumbered(self, gpus: Mapping[int, int], nics: Mapping[int, int]) -> "FactPath | None":
        """Return the address with the devices' new indices; None if one of its devices has no new index."""
        numbers = nics if self.group == "nics" else gpus
        key, fact = self.key, self.fact
        if self.group in ("gpus", "links", "nics") and self.indices:
            new = [numbers.get(index) for index in self.indices]
            if None in new:
                return None
            key = "-".join(map(str, sorted(index for index in new if index is not None)))
        for kind, number in _DEVICE.findall(fact):  # in the hops of a NIC
            index = (gpus if kind == "gpu" else nics).get(int(number))
            if index is None:
                return None
            fact = fact.replace(f"{kind}:{number}", f"{kind}:{index}")
        return FactPath(self.group, key, fact)


def item(listed: str, key: object, fact: str = "") -> str:
    """Return the address of a fact of an item in a list: `nvlinks[2].active`."""
    return within(f"{listed}[{key}]", fact)


def within(path: str, fact: str) -> str:
    """Return the address of a fact below another; either may be ""."""
    return f"{path}.{fact}" if path and fact else path or fact


def above(path: str) -> str:
    """Return the address of the part that a fact belongs to, "" at the top."""
    return path.rpartition(".")[0]


def at_gpu(index: int | str, fact: str = "") -> str:
    """Return the address of a fact of a GPU, or of every GPU (EVERY)."""
    return item("gpus", index, fact)


def at_link(a: int | str, b: int | str | None = None, fact: str = "") -> str:
    """Return the address of a fact of the pair of GPUs `a` and `b`, or of every pair (EVERY)."""
    return item("links", a if b is None else f"{a}-{b}", fact)


def at_nic(index: int | str, fact: str = "") -> str:
    """Return the address of a fact of a network card."""
    return item("nics", index, fact)


def at_pci(address: str, fact: str = "") -> str:
    """Return the address of a fact of a PCI function."""
    return item("pci", address, fact)


def at_numa_node(index: int, fact: str = "") -> str:
    """Return the address of a fact of a NUMA node."""
    return item("host.numa_nodes", index, fact)


def key_of(value: Any) -> Any:
    """Return the key of a value in its list: indices, an address, a number."""
    if isinstance(value, Link):
        return value.a, value.b
    if isinstance(value, PciNode):
        return value.address
    if isinstance(value, GpuProcess):
        return value.pid
    return value.link if isinstance(value, NvLink) else value.index


def key_text(key: Any) -> str:
    """Return a key as written in brackets: `0-1` for a pair."""
    return "-".join(map(str, key)) if isinstance(key, tuple) else str(key)


def values_at(value: Any, path: str) -> list[Any]:
    """Return the values at an address within a value: one, several for `*`, none for an unknown key."""
    values = [value]
    for name, key in _STEP.findall(path):
        if name:
            values = [
                part.get(name) if isinstance(part, dict) else getattr(part, name, None) for part in values
            ]
        else:
            values = [
                part for many in values for part in many or () if key in (EVERY, key_text(key_of(part)))
            ]
    return values


def single_facts(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the single facts of a value by address: `pcie.gen_max`, `nvlinks[0].active`, `aer.fatal`."""
    if isinstance(value, msgspec.Struct):
        parts = [(within(path, name), getattr(value, name)) for name in value.__struct_fields__]
    elif isinstance(value, dict):
        parts = [(within(path, str(name)), part) for name, part in value.items()]
    elif isinstance(value, tuple) and value and isinstance(value[0], msgspec.Struct):
        parts = [(item(path, key_text(key_of(part))), part) for part in value]
    else:
        yield path, value.value if isinstance(value, Enum) else value
        return
    for name, part in parts:
        yield from single_facts(part, name)


def label(machine: Machine, gpu: Gpu) -> str:
    """Return the number of a GPU, or its PCI address if the capture does not show the number."""
    is_numbered = at_gpu(gpu.index, "index") not in machine.missing
    return str(gpu.index) if is_numbered or gpu.pci_address is None else gpu.pci_address


def has_any(value: Machine | Gpu, paths: tuple[str, ...]) -> bool:
    """Return whether any of these facts is known."""
    return any(_is_known(type(value), path, fact) for path in paths for fact in values_at(value, path))


def _is_known(kind: type[Machine | Gpu], path: str, value: object) -> bool:
    if isinstance(value, msgspec.Struct):
        return value != type(value)()
    return value not in ((), {}) and field_at(kind, path).is_known(value)
