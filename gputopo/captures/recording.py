"""gputopo's own JSON: `inspect --record` and `--json`, `bandwidth --json`, and the bundled machines.

The fields of a `gputopo.bandwidth/1` are next to its `machine`, which has no bandwidth itself.
"""

import functools
import re
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from gputopo.captures import limits
from gputopo.captures.ledger import Format
from gputopo.values import samples, schema
from gputopo.values.bandwidth import Bandwidth
from gputopo.values.errors import InputError
from gputopo.values.machine import Gpu, Machine

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


_OURS = re.compile(r'"schema"\s*:\s*"gputopo\.[a-z]+/')
_HINT = "give a file that `gputopo inspect --record FILE` or `gputopo inspect --json` wrote"
# A negative number that is not a temperature, or a number of more than 64 bits.
_STRANGE = re.compile(r'"(?!gpu"|memory"|margin)\w+"\s*:\s*\[?\s*(?:-[\d.]+|\d{19,})')
_SUFFIX = ".json"


class _Inspection(msgspec.Struct, tag_field="schema", tag="gputopo.inspect/1"):
    """The part of an inspection that is read back; its findings are computed again."""

    machine: Machine


class _Measured(msgspec.Struct, tag_field="schema", tag="gputopo.bandwidth/1"):
    """The machine in the JSON of a measurement."""

    machine: Machine | None = None


def detect(text: str) -> bool:
    """Return whether the text is a JSON object, maybe cut, with a gputopo schema."""
    return text.lstrip().startswith("{") and _OURS.search(text) is not None


def parse(text: str, *, origin: str) -> Machine:
    """Read the machine of a recording, an inspection or a measurement, exactly as it was written.

    Raises InputError if the JSON is cut, of another kind, of a newer version, or inconsistent.
    """
    schema_name = schema.schema_of(text) or "gputopo.machine"
    kind = schema_name.partition("/")[0]
    if kind == "gputopo.inspect":
        machine = schema.decode(text, _Inspection, origin=origin).machine
    elif kind == "gputopo.bandwidth":
        bandwidth = schema.decode(text, Bandwidth, origin=origin)
        gpus = tuple(Gpu(index=index) for index in sorted(bandwidth.gpus))
        measured = schema.decode(text, _Measured, origin=origin).machine
        machine = replace(measured or Machine(source=bandwidth.source, gpus=gpus), bandwidth=bandwidth)
    elif kind == "gputopo.machine":
        machine = schema.decode(text, Machine, origin=origin)
    else:
        raise InputError(f"{origin} holds {schema_name}, which is not a machine", _HINT)
    if strange := _STRANGE.search(text.partition('"findings"')[0]):
        raise InputError(f"{origin} has a number that cannot be: {strange[0][:80]}", _HINT)
    _check(machine, origin)
    return machine


def _check(machine: Machine, origin: str) -> None:
    """Raise InputError for a machine that is impossible, such as after a manual edit."""
    limits.require_gpus(machine.gpus, origin)
    indices = [gpu.index for gpu in machine.gpus]
    if twice := {index for index in indices if indices.count(index) > 1}:
        raise InputError(f"{origin} has two GPUs with the index {min(twice)}", _HINT)
    seen: set[tuple[int, int]] = set()
    for link in machine.links:
        if stranger := {link.a, link.b}.difference(indices):
            raise InputError(
                f"{origin}: link {link.a}-{link.b} refers to GPU {min(stranger)}, which it does not have",
                _HINT,
            )
        if (link.a, link.b) in seen:
            raise InputError(f"{origin} has the link {link.a}-{link.b} twice", _HINT)
        seen.add((link.a, link.b))
    for facts in (facts for sample in machine.samples for facts in sample.gpus):
        try:
            samples.gpu_with(facts["index"], facts)
        except (KeyError, TypeError, AttributeError, msgspec.ValidationError) as error:
            raise InputError(f"{origin} has a sample with facts that no GPU has: {error}", _HINT) from error
    if machine.bandwidth is not None and (named := machine.bandwidth.gpus - set(indices)):
        raise InputError(f"{origin}: its bandwidth is of GPU {min(named)}, which it does not have", _HINT)


@functools.cache
def bundled_names() -> tuple[str, ...]:
    """Return the names of the bundled machines, sorted."""
    folder = _folder()
    return tuple(
        sorted(file.name.removesuffix(_SUFFIX) for file in folder.iterdir() if file.name.endswith(_SUFFIX))
    )


def read_bundled(name: str) -> Machine:
    """Read a bundled machine by its name. Raises InputError for an unknown name."""
    if name not in bundled_names():
        raise InputError(
            f"no bundled machine is called {name}", f"choose one of {', '.join(bundled_names())}"
        )
    file = _folder() / (name + _SUFFIX)
    return parse(file.read_text(encoding="utf-8"), origin=f"the bundled machine {name}")


def _folder() -> "Traversable":
    from importlib import resources  # slow to load, and most captures are files

    return resources.files("gputopo.reference.data") / "machines"


FORMAT = Format(
    "a gputopo recording (`inspect --record FILE`, `bandwidth --json`)", "everything", detect, parse
)
