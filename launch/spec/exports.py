"""A run as other programs start it: Slurm and docker on one host; Slurm and mpirun on several. Pure.

Slurm gives a job GPUs by number, not by name: its scripts ask for whole nodes and name the GPUs themselves.
In a container only the planned GPUs exist, numbered anew from 0 in PCI order.
"""

import math
import re
import shlex
from collections.abc import Mapping

import msgspec

from gputopo.launch.hosts.hostlists import HostAddress
from gputopo.launch.remote_agent import SECRET
from gputopo.launch.spec.host_place import HostPlace
from gputopo.values.errors import UsageError
from gputopo.values.index_ranges import host_ranges
from gputopo.values.machine import Machine
from gputopo.values.run.plan import SPREAD, Candidate

# As NVIDIA's documentation of its TensorFlow container has it: NCCL's segments need more shared memory than
# the 64 MiB of a container, and its transfers locked memory.
_FOR_NCCL = ("--shm-size=1g", "--ulimit", "memlock=-1", "--ulimit", "stack=67108864")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
# In a training rank 0 ends the others after it has reported why: a host that ends, or fails, must not.
# Hosts of a program are ended by srun. The CPUs of a rank are gputopo's choice, not one core (the default of
# Slurm and Open MPI for one task).
SRUN = ("srun", "--ntasks-per-node=1", "--wait=0", "--no-kill", "--cpu-bind=none")
MPIRUN = ("mpirun", "--bind-to", "none")
_START_MINUTES = 15  # beside the steps: imports, building the graph, a checkpoint at the end
# Options of sbatch of which a script may have one.
_ONE_OF = (
    ("gres", "gpus", "gpus-per-node", "gpus-per-task"),
    ("mem", "mem-per-cpu", "mem-per-gpu"),
    ("cpus-per-task", "cpus-per-gpu"),
)
# By which the hosts know one another: made by each job, never written.
_MAKE_SECRET = (f"{SECRET}=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')", f"export {SECRET}")
# Of each GPU of a node whose CPUs and memory are not known. Not measured; chosen because nodes of 8 GPUs have
# at least 64 CPUs and 512 GiB (DGX-1: 80 and 512, in NVIDIA's user guide), and a job that asks for neither
# gets one CPU and the default memory of its partition.
_CPUS_A_GPU, _MIB_A_GPU = 8, 60 * 1024


class ExportedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that another program starts, on one host or on `size` that are alike."""

    words: tuple[str, ...]  # options of `gputopo run`, with --model, but for those of plan and hosts
    folder: str  # where it starts
    choice: Candidate  # with the GPUs of a host, and the speed of all
    machine: Machine  # of a host
    program: tuple[str, ...] = ()  # of the user, empty for the core
    options: tuple[str, ...] = ()  # of sbatch, as given, before those of the plan
    named: bool = True  # the user named GPUs, to take or to exclude
    steps: int | None = None  # with those of the warm-up, where they are known
    mode: bool = True  # the placement of the plan is named; False: `words` have it
    size: int = 1
    hosts: tuple[HostAddress, ...] = ()  # empty where they are not known
    place: HostPlace = HostPlace()  # of one host, as the following
    environment: Mapping[str, str] = {}  # of the plan
    folders: tuple[str, ...] = ()  # others that it reads or writes
    home: str | None = None  # GPUTOPO_HOME of its record

    def command(self, *where: str, choice: Candidate | None = None, named: bool = True) -> list[str]:
        """Return the command for a host; `where`: options of hosts; `choice`: in the place of its own.

        `named`: by the GPUs of the choice, which a host has with others; else by the number of all.
        """
        choice = self.choice if choice is None else choice
        number = str(self.size * len(choice.gpus))
        words = [*where, *(["--gpus", ",".join(map(str, choice.gpus))] if named else ["--num-gpus", number])]
        words.append("--require-gpu")
        if self.mode and self.size == 1 and not self.program:
            words += ["--variable-update", choice.variable_update]
            words += [] if choice.ps_device is None else ["--ps", choice.ps_device]
            words += [] if choice.all_reduce is None else ["--all-reduce", choice.all_reduce]
        own = ["gputopo", "run", *self.words, *words]
        return [*own, "--", *self.program] if self.program else own


def renumbered(choice: Candidate) -> Candidate:
    """Return the choice with GPUs numbered as where no others are: from 0, by their indices."""
    numbers = {gpu: number for number, gpu in enumerate(sorted(choice.gpus))}
    holder = choice.ps_device
    if holder is not None and holder.startswith("gpu:") and holder != SPREAD:
        holder = f"gpu:{numbers[int(holder.removeprefix('gpu:'))]}"
    gpus = tuple(numbers[gpu] for gpu in choice.gpus)
    return msgspec.structs.replace(choice, gpus=gpus, ps_device=holder)


def sbatch(start: ExportedRun) -> str:
    """Return a batch script: for whole nodes where GPUs are named or all are taken. Raises UsageError."""
    machine, has, takes = start.machine, len(start.machine.gpus), len(start.choice.gpus)
    whole = start.named or takes == has
    strange = next((host for host in start.hosts if host.port is not None or host.is_ip), None)
    if strange is not None:
        raise UsageError(
            f"--format sbatch needs node names, but {strange} is an address",
            "use the names that `sinfo -N` shows",
        )
    names = [name for host in start.hosts if not _UNSAFE.search(name := str(host))]
    nodes = [f"nodes={start.size}", *([f"nodelist={host_ranges(names)}"] if names else [])]
    command = start.command(choice=start.choice if whole else renumbered(start.choice), named=whole)
    exports = [f"export {name}={shlex.quote(value)}" for name, value in start.environment.items() if whole]
    if start.size > 1:
        ends = f"--kill-on-bad-exit={int(bool(start.program))}"
        exports, command = [*_MAKE_SECRET], [*SRUN, ends, *command]
    totals = {"cpus-per-gpu": machine.host.logical_cpus, "mem-per-gpu": machine.host.memory_mib}
    defaults = (_CPUS_A_GPU, _MIB_A_GPU)
    shares = [
        f"{name}={total // has if total else default}"
        for (name, total), default in zip(totals.items(), defaults, strict=True)
    ]
    limit = _time_limit(start)
    name = start.program[0].rpartition("/")[2] if start.program else "run"
    options = [
        f"job-name={_UNSAFE.sub('-', f'gputopo-{name}')}",
        *nodes,
        "ntasks-per-node=1",
        f"gres=gpu:{has if whole else takes}",
        *(["exclusive", "mem=0"] if whole else shares),
        *([] if limit is None else [f"time={limit}"]),
    ]
    given = {one.partition("=")[0] for one in start.options}
    given |= {name for names in _ONE_OF if given & {*names} for name in names}
    why = "Slurm chooses the GPUs; with --gpus LIST the script takes whole nodes and these."
    if whole:
        why = "Whole nodes, because Slurm assigns GPUs by number and this run uses specific GPUs."
    remarks = [why]
    untimed = limit is None and "time" not in given
    if untimed:
        remarks.append("The run time is unknown: fill in a limit above and remove one #.")
    if not whole and not all(totals.values()):
        remarks.append("CPUs and memory of the nodes are unknown: correct the request per GPU.")
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH --{one}" for one in start.options),
        *(f"#SBATCH --{one}" for one in options if one.partition("=")[0] not in given),
        *(["##SBATCH --time=HH:MM:SS"] if untimed else []),
        *(f"# {one}" for one in remarks),
        f"cd -- {shlex.quote(start.folder)} || exit",
        *exports,
        f"exec {shlex.join(command)}",
    ]
    return "".join(f"{line}\n" for line in lines)


def _time_limit(start: ExportedRun) -> str | None:
    """Return the time limit of a job, from the slowest that is predicted; None: it is not known."""
    choice = start.choice
    if start.steps is None or choice.step_ms is None or not choice.images_per_sec_low:
        return None
    slowest_ms = choice.step_ms * (choice.images_per_sec or 0.0) / choice.images_per_sec_low
    minutes = math.ceil(start.steps * slowest_ms / 60_000) + _START_MINUTES
    return f"{minutes // 60}:{minutes % 60:02}:00"


def docker(start: ExportedRun) -> str:
    """Return a command line for a shell. Raises UsageError for a folder that docker refuses."""
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
    command = start.program or start.command(choice=choice)
    return f"{shlex.join(words)} {image} {shlex.join(command)}\n"


def hostfile(start: ExportedRun) -> str:
    """Return a hostfile of Open MPI, with the command line in a comment.

    Raises UsageError without names, and for words that a comment cannot have.
    """
    if not start.hosts:
        raise UsageError("--format hostfile needs the names of the hosts", "add --hosts LIST")
    ports = all(host.port is None for host in start.hosts)
    listed = (host_ranges if ports else ",".join)(str(host) for host in start.hosts)
    one_each = ("--map-by", "ppr:1:node")
    command = [*MPIRUN, "--hostfile", "HOSTFILE", "-n", str(start.size), *one_each]
    line = shlex.join([*command, *start.command("--hosts", listed)])
    if not line.isprintable():
        raise UsageError(
            "the command has a line break, or another character that a comment cannot have",
            "put it into a script, and run the script",
        )
    text = [f"# {line}", *(f"{host.name} slots=1" for host in start.hosts)]
    return "".join(f"{one}\n" for one in text)
