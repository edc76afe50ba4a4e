"""The constants of the programs that train, by name: `gputopo/reference/data/programs.json`.

No constant is of a machine, a model or a group of measurements. `tests.fits.programs` finds them from
published figures; each set names them.
"""

import functools
from importlib import resources
from typing import Literal

import msgspec

from gputopo.values.errors import UsageError
from gputopo.values.option import listed, nearest

DEFAULT = "gputopo"
FILE = "programs.json"


class ProgramConstants(msgspec.Struct, frozen=True, kw_only=True):
    """One program that trains, as constants of its steps.

    - `overlap`, `ring_overlap`: share of backward over which gradients leave as they are made; of rings;
    - `wait`: share of the copies of weights that forward waits for, from the host or from GPUs;
    - `return_share`: share of the copies of the sums back to the GPUs that the step waits for;
    - `link_share`, `ring_share`: of the measured or expected rate that its copies and its rings reach;
    - `host_add_gb_per_s`: gradients added by the cores of one CPU socket;
    - `us_cpu`: microseconds of each variable and tower where the CPU has variables or adds gradients, divided
      by the CPU sockets; no figure of `pscpu` is published;
    - `us_device`, `us_add`: the same where GPUs have variables, and where they add the gradients of replicas;
    - `us_ring`: microseconds of each variable of a ring, however many the towers;
    - `ring_mb`: 10^6 bytes that each variable adds to what a ring carries: messages are small.

    `adds`: how replicas add without NCCL: by size, or alternating, as tf_cnn_benchmarks does by default.
    `cuts_variables`: whether large variables are cut where they are spread over GPUs (`workload.spreading`).
    `gathers`: whether copies of gradients to variables that are spread over GPUs take as long as to one GPU.
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
    return {one.name: one for one in msgspec.json.decode(data, type=_Table).programs}


def program_names() -> tuple[str, ...]:
    """Return the names that `--program` takes."""
    return tuple(_programs())


def require_program(name: str) -> ProgramConstants:
    """Return the constants of a program. Raises UsageError with the nearest names."""
    known = _programs()
    if name in known:
        return known[name]
    near = nearest(name, known)
    hint = f"did you mean {listed(near)}?" if near else f"the programs are: {', '.join(known)}"
    raise UsageError(f"there is no program '{name}'", hint)
