"""A run of the user's own program, as a value; and what the spec of any run is read as (`job_of`)."""

from collections.abc import Mapping
from typing import Any

import msgspec

from gputopo.values.run.plan import Plan
from gputopo.values.run.spec import JobSpec, RunSpec

PROGRAM = "program"  # the task of a run of the user's own program
OWN_TRAINER = "own towers"  # in result.json
MAX_PROCESSES = 1024  # of a host; a program that reports more is not believed; not measured

# Of a spec that lacks what every one of this version has.
_BLANK: Mapping[str, Any] = {"model": "", "devices": (), "backend": "cpu", "batch_size": 1}


class ProgramSpec(JobSpec, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.program/1"):
    """A program and the GPUs that it was given; `model`: its name, for the run's folder."""

    command: tuple[str, ...]
    task: str = PROGRAM

    @property
    def gpus(self) -> list[int]:
        """The GPUs of the plan on this host, by their indices in the machine."""
        return [one.gpu for one in self.devices if one.gpu is not None]

    @property
    def towers(self) -> list[int]:
        """The towers of the devices, in the order in which the program sees them.

        Without GPUs each process of the program is a device, by its local rank.
        """
        return [one.tower for one in self.devices] or [*range(MAX_PROCESSES)]


class ProgramPart(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.programpart/1"):
    """What a host of rank 1 or above gets of a program's run: its own spec and plan, and variables."""

    spec: ProgramSpec
    plan: Plan
    cluster: dict[str, str]


def job_of(spec: Mapping[str, Any]) -> JobSpec:
    """Return the spec that a file has as JSON: of a program, or a `RunSpec`, also of an older version.

    What an older version lacks has its default. A plain `JobSpec` without devices stands for what is no spec.
    """
    kind = ProgramSpec if spec.get("task") == PROGRAM else RunSpec if spec.get("model") else JobSpec
    try:
        return msgspec.convert({**_BLANK, **spec}, kind, strict=False)
    except msgspec.ValidationError:
        return JobSpec(model="", devices=(), backend="cpu")
