"""A run as other programs start it: Slurm and docker on one host; Slurm and mpirun on several. Pure.

Slurm gives a job GPUs by number, not by name: its scripts ask for whole nodes and name the GPUs themselves.
In a container only the planned GPUs exist, numbered anew from 0 in PCI order.
"""

import math
import re
import shlex
from collections.abc import Mapping, Sequence

import msgspec

from gputopo.launch.hosts.hostlists import HostAddress
from gputopo.launch.remote_agent import SECRET
from gputopo.launch.spec.env import HostPlace
from gputopo.values.errors import UsageError
from gputopo.values.index_ranges import host_ranges
from gputopo.values.machine import Machine
from gputopo.values.run.plan import SPREAD, Candidate

# As NVIDIA's documentation of its TensorFlow container has it: NCCL's segments need more shared memory than
# the 64 MiB of a container, and its transfers locked memory.
_FOR_NCCL = ("--shm-size=1g", "--ulimit", "memlock=-1", "--ulimit", "stack=67108864")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
# A host that ends, or fails, must not end the others: rank 0 does, after it has reported why. The CPUs of a
# rank are gputopo's choice, not one core (Slurm's and Open MPI's default for one task).
SRUN = ("srun", "--ntasks-per-node=1", "--kill-on-bad-exit=0", "--wait=0", "--no-kill", "--cpu-bind=none")
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
    """A run that another program starts, on one host or on several that are alike."""

    words: tuple[str, ...]  # options of `gputopo run`, with --model, but for those of plan and hosts
    folder: str  # where it starts
    choice: Candidate  # with the GPUs of a host, and the speed of all
    machine: Machine  # of a host
    program: tuple[str, ...] = ()  # of the user, empty for the core
    options: tuple[str, ...] = ()  # of sbatch, as given, before those of the plan
    named: bool = True  # the user named GPUs, to take or to exclude
    steps: int | None = None  # with those of the warm-up, where they are known

    @property
    def job_name(self) -> str:
        """What the job is called: by its program, without a path."""
        return f"gputopo-{self.program[0].rpartition('/')[2] if self.program else 'run'}"

    def command(self, where: Sequence[str]) -> list[str]:
        """Return the command; `where`: options of hosts and GPUs."""
        own = ["gputopo", "run", *self.words, *where]
        return [*own, "--", *self.program] if self.program else own


class HostExport(ExportedRun, frozen=True, kw_only=True):
    """A run on one host."""

    place: HostPlace
    environment: Mapping[str, str]  # of the plan
    mode: bool = True  # the placement of the plan is named; False: `words` have it
    folders: tuple[str, ...] = ()  # others that it reads or writes
    home: str | None = None  # GPUTOPO_HOME of its record
    host_name: str | None = None  # of the planned machine, None for a capture

    def in_job(self, *, whole: bool) -> tuple[list[str], list[str], list[str]]:
        """Return the options of sbatch for the nodes, the lines before the command, and that.

        `whole`: with all GPUs of the node, of which the command names its own.
        """
        name = self.host_name
        nodes = ["nodes=1", *([f"nodelist={name}"] if name and not _UNSAFE.search(name) else [])]
        if not whole:
            words = plan_words(renumbered(self.choice), mode=self.mode and not self.program, named=False)
            return nodes, [], self.command(words)
        exports = [f"export {name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return nodes, exports, self.on_named_gpus(self.choice)

    def on_named_gpus(self, choice: Candidate) -> list[str]:
        """Return the command with the GPUs of a choice, and the placement where that is the plan's."""
        return self.command(plan_words(choice, mode=self.mode and not self.program))


def renumbered(choice: Candidate) -> Candidate:
    """Return the choice with GPUs numbered as where no others are: from 0, by their indices."""
    numbers = {gpu: number for number, gpu in enumerate(sorted(choice.gpus))}
    holder = choice.ps_device
    if holder is not None and holder.startswith("gpu:") and holder != SPREAD:
        holder = f"gpu:{numbers[int(holder.removeprefix('gpu:'))]}"
    gpus = tuple(numbers[gpu] for gpu in choice.gpus)
    return msgspec.structs.replace(choice, gpus=gpus, ps_device=holder)


def plan_words(choice: Candidate, *, mode: bool, named: bool = True) -> list[str]:
    """Return the options that plan just this choice; without `mode` its GPUs alone, or their number."""
    gpus = ["--gpus", ",".join(map(str, choice.gpus))] if named else ["--num-gpus", str(len(choice.gpus))]
    words = [*gpus, "--require-gpu"]
    if not mode:
        return words
    words += ["--variable-update", choice.variable_update]
    if choice.ps_device is not None:
        words += ["--ps", choice.ps_device]
    if choice.all_reduce is not None:
        words += ["--all-reduce", choice.all_reduce]
    return words


def sbatch(start: "HostExport | HostsExport") -> str:
    """Return a batch script: for whole nodes where GPUs are named or all are taken. Raises UsageError."""
    machine, has, takes = start.machine, len(start.machine.gpus), len(start.choice.gpus)
    whole = start.named or takes == has
    nodes, exports, command = start.in_job(whole=whole)
    totals = {"cpus-per-gpu": machine.host.logical_cpus, "mem-per-gpu": machine.host.memory_mib}
    defaults = (_CPUS_A_GPU, _MIB_A_GPU)
    shares = [
        f"{name}={total // has if total else default}"
        for (name, total), default in zip(totals.items(), defaults, strict=True)
    ]
    limit = _time_limit(start)
    options = [
        f"job-name={_UNSAFE.sub('-', start.job_name)}",
        *nodes,
        *("ntasks-per-node=1", f"gres=gpu:{has if whole else takes}"),
        *(["exclusive", "mem=0"] if whole else shares),
        *([] if limit is None else [f"time={limit}"]),
    ]
    given = {one.partition("=")[0] for one in start.options}
    given |= {name for names in _ONE_OF if given & {*names} for name in names}
    why = "Slurm chooses the GPUs; with --gpus LIST the script takes whole nodes and these."
    if whole:
        why = "Whole nodes: Slurm gives GPUs by number, and this run names those of its plan."
    remarks = [why]
    untimed = limit is None and "time" not in given
    if untimed:
        remarks.append("The time of this run is not predicted: fill in a limit above, and remove one #.")
    if not whole and not all(totals.values()):
        remarks.append("The CPUs and the memory of the nodes are not known: correct what is asked for a GPU.")
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


def docker(start: HostExport) -> str:
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
    command = start.program or start.on_named_gpus(choice)
    return f"{shlex.join(words)} {image} {shlex.join(command)}\n"


class HostsExport(ExportedRun, frozen=True, kw_only=True):
    """A run on `size` hosts."""

    size: int
    hosts: tuple[HostAddress, ...] = ()  # empty where they are not known

    def in_job(self, *, whole: bool) -> tuple[list[str], list[str], list[str]]:
        """As of `HostExport`. Raises UsageError for hosts that are not nodes' names."""
        strange = next((host for host in self.hosts if host.port is not None or host.is_ip), None)
        if strange is not None:
            raise UsageError(
                f"--format sbatch names nodes, and {strange} is an address",
                "name the hosts as `sinfo -N` does",
            )
        nodes = [f"nodes={self.size}"]
        nodes += [f"nodelist={host_ranges(list(map(str, self.hosts)))}"] if self.hosts else []
        number = ("--num-gpus", str(self.size * len(self.choice.gpus)), "--require-gpu")
        command = self.on_named_gpus() if whole else self.command(number)
        return nodes, [*_MAKE_SECRET], [*SRUN, *command]

    def on_named_gpus(self, *more: str) -> list[str]:
        """Return the command for a host that has all its GPUs; `more`: options of hosts."""
        return self.command((*more, "--gpus", ",".join(map(str, self.choice.gpus)), "--require-gpu"))


def hostfile(start: HostsExport) -> str:
    """Return a hostfile of Open MPI, with the command line in a comment.

    Raises UsageError without names, and for words that a comment cannot have.
    """
    if not start.hosts:
        raise UsageError("--format hostfile needs the names of the hosts", "add --hosts LIST")
    ports = all(host.port is None for host in start.hosts)
    listed = (host_ranges if ports else ",".join)(str(host) for host in start.hosts)
    one_each = ("--map-by", "ppr:1:node")
    command = [*MPIRUN, "--hostfile", "HOSTFILE", "-n", str(start.size), *one_each]
    line = shlex.join([*command, *start.on_named_gpus("--hosts", listed)])
    if not line.isprintable():
        raise UsageError(
            "the command has a line break, or another character that a comment cannot have",
            "write it into a script, and name that",
        )
    text = [f"# {line}", *(f"{host.name} slots=1" for host in start.hosts)]
    return "".join(f"{one}\n" for one in text)
