"""What a run of a program of the user is, as its events and its spec.json have it. Pure."""

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import msgspec

from gputopo.launch.spec.prepare import driver_versions, max_clocks, tower_device
from gputopo.launch.spec.run_spec import Backend
from gputopo.launch.spec.target import Target
from gputopo.values.run.events import Device


class ProgramSpec(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.program/1"):
    """A program and the devices that it was given; none without GPUs.

    `model`: its name, for the run's folder. `max_clocks_mhz`, `versions`, `says`: as of RunSpec.
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

    @property
    def gpus(self) -> list[int]:
        """The GPUs of the plan, by their indices in the machine."""
        return [one.gpu for one in self.devices if one.gpu is not None]


def program_spec(target: Target, command: Sequence[str], says: Sequence[str] = ()) -> ProgramSpec:
    """Return the spec of a program on a target: GPU i of the plan is the one that it sees as GPU i."""
    on_gpus = target.backend == "gpu"
    gpus = target.plan.choice.gpus if on_gpus else ()
    words = tuple(word.encode(errors="replace").decode() for word in command)  # any bytes; JSON is UTF-8
    return ProgramSpec(
        model=_folder_name(words[0]),
        command=words,
        devices=tuple(
            tower_device(place, target.plan.choice, target.machine, "gpu") for place in range(len(gpus))
        ),
        backend=target.backend,
        max_clocks_mhz=max_clocks(target.machine, gpus),
        rehearsal_of=target.rehearsal_of,
        versions=driver_versions(target),
        says=tuple(says),
    )


def _folder_name(program: str) -> str:
    return "".join(one if one.isalnum() or one in "._-" else "_" for one in PurePath(program).name)[:40]
