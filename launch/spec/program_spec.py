"""What a run of a program of the user is, as its events and its spec.json have it. Pure."""

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import msgspec

from gputopo.launch.spec.names import host_names
from gputopo.launch.spec.prepare import devices_of, driver_versions, max_clocks_of_all
from gputopo.launch.spec.run_spec import Backend, Server
from gputopo.launch.spec.target import Target
from gputopo.values.run.events import Device
from gputopo.values.run.plan import Plan


class ProgramSpec(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.program/1"):
    """A program and the devices that it was given; none without GPUs.

    `model`: its name, for the run's folder. `max_clocks_mhz`, `versions`, `says`, `servers`: as of RunSpec;
    each server's address is where the program may listen.
    """

    model: str
    command: tuple[str, ...]
    devices: tuple[Device, ...]
    backend: Backend
    task: str = "program"
    max_clocks_mhz: dict[str, dict[str, int]] = {}
    rehearsal_of: str | None = None
    asked: dict[str, Any] = {}
    versions: dict[str, str] = {}
    says: tuple[str, ...] = ()
    servers: tuple[Server, ...] = ()

    @property
    def gpus(self) -> list[int]:
        """The GPUs of the plan on this host, by their indices in the machine."""
        return [one.gpu for one in self.devices if one.gpu is not None and one.rank == 0]

    @property
    def towers(self) -> dict[int, list[int]]:
        """The towers of each host with devices, by its rank: in the order in which its program sees them."""
        found: dict[int, list[int]] = {}
        for one in self.devices:
            found.setdefault(one.rank, []).append(one.tower)
        return found


class ProgramPart(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.programpart/1"):
    """What a host of rank 1 or above gets of a program's run: its own spec and plan, name and variables."""

    spec: ProgramSpec
    plan: Plan
    host: str
    cluster: dict[str, str]


def program_spec(target: Target, command: Sequence[str], says: Sequence[str] = ()) -> ProgramSpec:
    """Return the spec of a program on a target: GPU i of the plan is the one that it sees as GPU i.

    Of several hosts it has the devices of all, those of rank 0 first.
    """
    on_gpus = target.backend == "gpu"
    words = words_of(command)
    return ProgramSpec(
        model=_folder_name(words[0]),
        command=words,
        devices=devices_of(target) if on_gpus else (),
        backend=target.backend,
        max_clocks_mhz=max_clocks_of_all(target) if on_gpus else {},
        rehearsal_of=target.rehearsal_of,
        versions=driver_versions(target),
        says=tuple(says),
        servers=tuple(
            msgspec.structs.replace(server, host=name)
            for server, name in zip(
                target.servers, host_names([server.host for server in target.servers]), strict=True
            )
        ),
    )


def words_of(command: Sequence[str]) -> tuple[str, ...]:
    """Return a command as JSON can have it: its words may be any bytes, and JSON is UTF-8."""
    return tuple(word.encode(errors="replace").decode() for word in command)


def _folder_name(program: str) -> str:
    return "".join(one if one.isalnum() or one in "._-" else "_" for one in PurePath(program).name)[:40]
