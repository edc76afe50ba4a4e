"""What every run of this launcher has in its spec.json, and the spec of a program of the user. Pure."""

from typing import Any, Literal

import msgspec

from gputopo.values.run.events import Device
from gputopo.values.run.plan import Plan

Backend = Literal["cpu", "gpu"]


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """One host of a run."""

    host: str
    address: str  # "10.0.0.2:40123": of its TensorFlow server, or where a program may listen
    cores: int  # that its devices may use


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What the specs of the core and of programs have in common."""

    model: str
    devices: tuple[Device, ...]  # in order, those of one host next to each other
    backend: Backend
    servers: tuple[Server, ...] = ()  # of all hosts of a run of several, by rank
    # Maximum clocks of each GPU, {"0": {"graphics": 1911, "memory": 4004}}, to compare those under load with.
    max_clocks_mhz: dict[str, dict[str, int]] = {}
    rehearsal_of: str | None = None  # name of the machine whose plan it is
    asked: dict[str, Any] = {}  # options of plan and training as typed, by name (`num_gpus`)
    versions: dict[str, str] = {}  # of software that the worker cannot see
    says: tuple[str, ...] = ()  # notes for every output


MAX_PROCESSES = 1024  # of a host; a program that reports more is not believed; not measured


class ProgramSpec(JobSpec, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.program/1"):
    """A program and the GPUs that it was given; `model`: its name, for the run's folder."""

    command: tuple[str, ...]
    task: str = "program"

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
