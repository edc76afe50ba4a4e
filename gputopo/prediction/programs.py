"""The constants of training programs, by name: `gputopo/reference/data/programs.json`.

No constant is specific to a machine, a model or a group of measurements. `tests.fits.programs` finds them
from published figures, which each set of constants lists.
"""

import functools
from importlib import resources
from typing import Literal

import msgspec

from gputopo.values.errors import UsageError
from gputopo.values.option import listed, nearest

DEFAULT_PROGRAM = "gputopo"
FILE = "programs.json"


class ProgramConstants(msgspec.Struct, frozen=True, kw_only=True):
    """One program that trains, as constants of its steps.

    - `overlap`, `ring_overlap`: share of the backward pass that overlaps with copies of gradients, without
      and with rings;
    - `wait`: share of the copies of weights that the forward pass waits for;
    - `return_share`: the step waits for this share of the copies of summed gradients back to the GPUs;
    - `link_share`, `ring_share`: share of the link's rate that copies reach, and that rings reach;
    - `host_add_gb_per_s`: rate at which the cores of one CPU socket add gradients;
    - `us_cpu`: microseconds per variable and GPU if the CPU stores variables or adds gradients, divided by
      the number of CPU sockets. No published speed covers the reduction `pscpu`;
    - `us_device`: microseconds per variable and GPU if GPUs store the variables;
    - `us_add`: microseconds per variable and GPU if GPUs add the gradients of replicas;
    - `us_ring`: microseconds per variable of a ring, for any number of GPUs;
    - `ring_mb`: 10^6 bytes that a prediction adds to the traffic of a ring for each variable, as small
      messages are slower.

    `adds`: the reduction that replicas use without NCCL (`psgpu` is the default of tf_cnn_benchmarks).
    `cuts_variables`: whether large variables are split if they are spread over GPUs (`workload.spreading`).
    `gathers`: whether copies of gradients take as long with the variables on all GPUs as with all variables
      on one GPU.
    """

    name: str
    source: str
    overlap: float
    ring_overlap: float
    wait: float
    return_share: float
    link_share: float
    ring_share: float
    host_add_gb_per_s: float
    us_cpu: float
    us_add: float
    us_device: float
    us_ring: float
    ring_mb: float
    adds: Literal["copy", "psgpu"]
    cuts_variables: bool
    gathers: bool


class _Table(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.programs/1"):
    programs: tuple[ProgramConstants, ...]


@functools.cache
def _programs() -> dict[str, ProgramConstants]:
    data = resources.files("gputopo.reference.data").joinpath(FILE).read_bytes()
    return {program.name: program for program in msgspec.json.decode(data, type=_Table).programs}


def program_names() -> tuple[str, ...]:
    """Return the names that `--program` accepts."""
    return tuple(_programs())


def require_program(name: str) -> ProgramConstants:
    """Return the constants of a program. Raises UsageError with the nearest names."""
    known = _programs()
    if name in known:
        return known[name]
    near = nearest(name, known)
    hint = f"did you mean {listed(near)}?" if near else f"the programs are: {', '.join(known)}"
    raise UsageError(f"there is no program '{name}'", hint)
