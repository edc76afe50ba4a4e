"""gputopo's own JSON: a recorded Machine (`inspect --record`), or what `inspect --json` printed."""

import re

import msgspec

from gputopo import schema
from gputopo.errors import InputError
from gputopo.machine import Machine

READS = "a gputopo recording"

_OURS = re.compile(r'"schema"\s*:\s*"gputopo\.[a-z]+/')
_HINT = "give a file that `gputopo inspect --record FILE` or `gputopo inspect --json` wrote"


class _Inspection(msgspec.Struct, tag_field="schema", tag="gputopo.inspect/1"):
    """The part of an inspection that is read back; its findings are found anew."""

    machine: Machine


def recognise(text: str) -> bool:
    """Tell whether the text is, or begins as, a JSON object with one of our schemas."""
    return text.lstrip().startswith("{") and _OURS.search(text) is not None


def parse(text: str, *, origin: str) -> Machine:
    """Read the machine of a recording or an inspection, exactly as it was written.

    Raises InputError if the JSON is cut off, of another kind or a newer version, or does not fit together.
    """
    found = schema.schema_of(text)
    if found is not None and found.partition("/")[0] == "gputopo.inspect":
        machine = schema.decode(text, _Inspection, origin=origin).machine
    elif found is not None and found.partition("/")[0] != "gputopo.machine":
        raise InputError(f"{origin} holds {found}, which is no machine", _HINT)
    else:
        machine = schema.decode(text, Machine, origin=origin)
    _check(machine, origin)
    return machine


def _check(machine: Machine, origin: str) -> None:
    """Refuse a machine edited by hand into one that cannot be. Raises InputError."""
    indices = [gpu.index for gpu in machine.gpus]
    if twice := {index for index in indices if indices.count(index) > 1}:
        raise InputError(f"{origin} has two GPUs with the index {min(twice)}", _HINT)
    seen: set[tuple[int, int]] = set()
    for link in machine.links:
        if stranger := {link.a, link.b} - set(indices):
            raise InputError(
                f"{origin}: link {link.a}-{link.b} refers to GPU {min(stranger)}, which it lacks", _HINT
            )
        if (link.a, link.b) in seen:
            raise InputError(f"{origin} has the link {link.a}-{link.b} twice", _HINT)
        seen.add((link.a, link.b))
