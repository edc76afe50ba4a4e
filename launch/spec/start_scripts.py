"""A planned run as a Slurm batch script or a `docker run` command line that starts it on the same GPUs. Pure.

Slurm gives a job GPUs by number, not by name: the script asks for the whole node and names the GPUs itself.
In a container only the planned GPUs exist, numbered anew from 0 in PCI order.
"""

import re
import shlex
from collections.abc import Mapping
from typing import Literal

import msgspec

from gputopo.launch.spec.host_place import HostPlace
from gputopo.values.errors import UsageError
from gputopo.values.machine import Machine
from gputopo.values.run.plan import SPREAD, Candidate

Manager = Literal["sbatch", "docker"]

# As NVIDIA's documentation of its TensorFlow container has it: NCCL's segments need more shared memory than
# the 64 MiB of a container, and its transfers locked memory.
_FOR_NCCL = ("--shm-size=1g", "--ulimit", "memlock=-1", "--ulimit", "stack=67108864")
_SAFE = re.compile(r"[^A-Za-z0-9._-]+")


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """A run to start: its GPUs and mode, what else was typed, and where.

    `words`: options of `gputopo run` but for those of the plan, with --model. `mode`: whether the placement
    of the plan is named, or left to what is among the words. `program`: of the user, empty for the core.
    `folder`: where it starts; `folders`: others that it reads or writes; `home`: GPUTOPO_HOME of its record.
    `host_name`: of the planned machine, None for a capture. `environment`: of the plan.
    """

    choice: Candidate
    machine: Machine
    place: HostPlace
    environment: Mapping[str, str]
    words: tuple[str, ...]
    folder: str
    mode: bool = True
    program: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    home: str | None = None
    host_name: str | None = None


def start_script(manager: Manager, start: Start) -> str:
    """Return the text for sbatch, or for a shell. Raises UsageError for a folder that docker refuses."""
    return _sbatch(start) if manager == "sbatch" else _docker(start)


def renumbered(choice: Candidate) -> Candidate:
    """Return the choice with GPUs numbered as where no others are: from 0, by their indices."""
    numbers = {gpu: number for number, gpu in enumerate(sorted(choice.gpus))}
    holder = choice.ps_device
    if holder is not None and holder.startswith("gpu:") and holder != SPREAD:
        holder = f"gpu:{numbers[int(holder.removeprefix('gpu:'))]}"
    gpus = tuple(numbers[gpu] for gpu in choice.gpus)
    return msgspec.structs.replace(choice, gpus=gpus, ps_device=holder)


def plan_words(choice: Candidate, *, mode: bool) -> list[str]:
    """Return the options that plan just this choice; without `mode` its GPUs alone."""
    words = ["--gpus", ",".join(map(str, choice.gpus)), "--require-gpu"]
    if not mode:
        return words
    words += ["--variable-update", choice.variable_update]
    if choice.ps_device is not None:
        words += ["--ps", choice.ps_device]
    if choice.all_reduce is not None:
        words += ["--all-reduce", choice.all_reduce]
    return words


def _sbatch(start: Start) -> str:
    named = _SAFE.sub("-", f"gputopo-{start.program[0].rpartition('/')[2] if start.program else 'run'}")
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={named}",
        "#SBATCH --nodes=1",
        "#SBATCH --ntasks=1",
        "#SBATCH --exclusive",
        f"#SBATCH --gres=gpu:{len(start.machine.gpus)}",
        "#SBATCH --mem=0",
    ]
    if start.host_name and not _SAFE.search(start.host_name):
        lines.append(f"#SBATCH --nodelist={start.host_name}")
    lines += [
        "# The whole node: Slurm gives GPUs by number, and this run names those of its plan.",
        f"cd -- {shlex.quote(start.folder)} || exit",
        *(f"export {name}={shlex.quote(value)}" for name, value in start.environment.items()),
        f"exec {shlex.join(_command(start, start.choice))}",
    ]
    return "".join(f"{line}\n" for line in lines)


def _docker(start: Start) -> str:
    choice = renumbered(start.choice)
    uuids = {gpu.index: gpu.uuid for gpu in start.machine.gpus}
    named = [uuids.get(gpu) for gpu in start.choice.gpus]
    by_uuid = all(named)
    devices = ",".join(str(one) for one in (named if by_uuid else start.choice.gpus))
    visible = devices if by_uuid else ",".join(map(str, choice.gpus))
    inside = {**start.environment, "CUDA_VISIBLE_DEVICES": visible}
    if start.home is not None and not start.program:
        inside["GPUTOPO_HOME"] = start.home
    words = ["docker", "run", "--rm", "--init", "--gpus", f'"device={devices}"', *_FOR_NCCL]
    if start.place.cpus is not None:
        words += ["--cpuset-cpus", start.place.cpus]
    for name, value in inside.items():
        words += ["--env", f"{name}={value}"]
    homes = [start.home] if start.home is not None and not start.program else []
    for folder in dict.fromkeys((start.folder, *start.folders, *homes)):
        if ":" in folder:
            raise UsageError(
                f"docker cannot mount {folder}: its name has a colon", "use a folder without one, or a link"
            )
        words += ["--volume", f"{folder}:{folder}"]
    words += ["--workdir", start.folder]
    what = "the program" if start.program else "gputopo"
    image = f'"${{IMAGE:?set IMAGE to an image that has {what} in it}}"'
    command = start.program or _command(start, choice)
    return f"{shlex.join(words)} {image} {shlex.join(command)}\n"


def _command(start: Start, choice: Candidate) -> list[str]:
    own = ["gputopo", "run", *start.words, *plan_words(choice, mode=start.mode and not start.program)]
    return [*own, "--", *start.program] if start.program else own
