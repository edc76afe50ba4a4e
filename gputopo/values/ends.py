"""The ends of a measurement as values: GPUs, host memory, a NUMA node, a host by its name."""

import re
from collections.abc import Mapping


class End(str):
    """One end of a measurement, as a text that is parsed when the value is created.

    `gpu:3`: a GPU by its index in the machine; `gpu:0,1,2`: GPUs that work together; `node:1`: the memory or
    the cores of a NUMA node; `host`: host memory of an unknown node; `host:n3`: a host by its name
    (`host:client` and `host:server` if a tool's output has no names). Any other text is none of these.
    """

    def __init__(self, text: str) -> None:
        kind, _, rest = text.partition(":")
        numbers = rest.split(",")
        listed = kind == "gpu" and all(number.isdecimal() for number in numbers)
        self.gpus = tuple(map(int, numbers)) if listed else ()
        self.gpu = self.gpus[0] if len(self.gpus) == 1 else None
        self.node = int(rest) if kind == "node" and rest.isdecimal() else None
        self.host = rest or None if kind == "host" else None

    @classmethod
    def of_gpus(cls, *gpus: int) -> "End":
        """Return the end that is a GPU, or several that work together, in this order."""
        return cls(f"gpu:{','.join(map(str, gpus))}")

    @classmethod
    def of_node(cls, node: int) -> "End":
        """Return the end that is a NUMA node."""
        return cls(f"node:{node}")

    @classmethod
    def of_host(cls, name: str) -> "End":
        """Return the end that is a host."""
        return cls(f"host:{name}")

    @property
    def name(self) -> str:
        """The name of a host; the text of any other end."""
        return self.host or self


HOST = End("host")
ALL_GPUS = End("gpus")  # all other GPUs together, if a tool reports one number for them
HOSTS = End("hosts")  # the GPUs of several hosts

_GPUS = re.compile(r"\b(gpus?):(\d+(?:,\d+)*)\b")


def gpus_in(text: str) -> set[int]:
    """Return the GPUs that a text contains as `gpu:3` or `gpus:0,1,2`."""
    return {int(number) for _, numbers in _GPUS.findall(text) for number in numbers.split(",")}


def renumbered(text: str, gpus: Mapping[int, int]) -> str:
    """Return a text with new GPU indices, in rising order; a GPU without a new index keeps its own."""

    def new(match: re.Match[str]) -> str:
        numbers = sorted(gpus.get(int(number), int(number)) for number in match[2].split(","))
        return f"{match[1]}:{','.join(map(str, numbers))}"

    return _GPUS.sub(new, text)
