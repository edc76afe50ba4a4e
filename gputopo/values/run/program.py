"""A run of the user's own program as a value, and the reader of the spec of any run (`job_of`)."""

from collections.abc import Mapping
from typing import Any

import msgspec

from gputopo.values.run.plan import Plan
from gputopo.values.run.spec import JobSpec, RunSpec

PROGRAM = "program"  # the task of a run of the user's own program
OWN_TRAINER = "own towers"  # in result.json
MAX_PROCESSES = 1024  # per host; larger numbers from a program are not used; not measured

# For a spec without fields that all specs of this version have.
_BLANK: Mapping[str, Any] = {"model": "", "devices": (), "backend": "cpu", "batch_size": 1}


class ProgramSpec(JobSpec, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.program/1"):
    """A program and its GPUs. `model`: name of the program, for the run's folder."""

    command: tuple[str, ...]
    task: str = PROGRAM

    @property
    def gpus(self) -> list[int]:
        """The GPUs of the plan on this host, by their indices in the machine."""
        return [device.gpu for device in self.devices if device.gpu is not None]

    @property
    def towers(self) -> list[int]:
        """The towers of the devices, in the order in which the program sees them.

        Without GPUs, each process of the program is a device, numbered by its local rank.
        """
        return [device.tower for device in self.devices] or [*range(MAX_PROCESSES)]


class ProgramPart(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.programpart/1"):
    """What a host of rank 1 or above receives for a program's run: its own spec and plan, and variables."""

    spec: ProgramSpec
    plan: Plan
    cluster: dict[str, str]


def job_of(spec: Mapping[str, Any]) -> JobSpec:
    """Return the spec in a file's JSON: of a program or a `RunSpec`, even of an older version.

    Fields that an older version does not have get their defaults. If it is not a spec, return a plain
    `JobSpec` without devices.
    """
    kind = ProgramSpec if spec.get("task") == PROGRAM else RunSpec if spec.get("model") else JobSpec
    try:
        return msgspec.convert({**_BLANK, **spec}, kind, strict=False)
    except msgspec.ValidationError:
        return JobSpec(model="", devices=(), backend="cpu")
