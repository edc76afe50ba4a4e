"""A run as other programs start it: Slurm and docker on one host; Slurm, mpirun, Kubernetes on several. Pure.

Slurm gives a job GPUs by number, not by name: its scripts ask for whole nodes and name the GPUs themselves.
In a container only the planned GPUs exist, numbered anew from 0 in PCI order. The manifests of Kubernetes are
JSON, which is YAML, behind comments.

JobSet: https://jobset.sigs.k8s.io, API jobset.x-k8s.io/v1alpha2. Its controller makes the headless service
by which pods find one another, `<jobset>-<job>-0-<index>.<subdomain>`; Kubernetes gives each pod of an
indexed job JOB_COMPLETION_INDEX. TrainJob: API trainer.kubeflow.org/v1alpha1; the runtime torch-distributed
gives each pod PET_NNODES, PET_NODE_RANK and PET_MASTER_ADDR, whatever the program is.
"""

import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

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
_MAX_NAME = 40  # a pod's name has the job, indices and a suffix besides, and 63 characters at most
# A host that ends, or fails, must not end the others: rank 0 does, after it has reported why. The CPUs of a
# rank are gputopo's choice, not one core (Slurm's and Open MPI's default for one task).
SRUN = ("srun", "--ntasks-per-node=1", "--kill-on-bad-exit=0", "--wait=0", "--no-kill", "--cpu-bind=none")
MPIRUN = ("mpirun", "--bind-to", "none")
_JOB = "workers"
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
# Pods start when their node has pulled the image, each at its own time. As torchrun's rendezvous waits.
_JOIN = ("--join-timeout", "600")


class ExportedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that another program starts, on one host or on several that are alike."""

    words: tuple[str, ...]  # options of `gputopo run`, with --model, but for those of plan and hosts
    folder: str  # where it starts
    choice: Candidate  # with the GPUs of a host, and the speed of all
    machine: Machine  # of a host
    folders: tuple[str, ...] = ()  # others that it reads or writes
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
    may_lose: bool = False  # it goes on without hosts that are lost

    def in_job(self, *, whole: bool) -> tuple[list[str], list[str], list[str]]:
        """As of `HostExport`. Raises UsageError for hosts that are not nodes' names."""
        strange = next((host for host in self.hosts if host.port is not None or host.is_ip), None)
        if strange is not None:
            raise UsageError(
                f"--format sbatch names nodes, and {strange} is an address",
                "name the hosts as `sinfo -N` does",
            )
        nodes = [f"nodes={self.size}", *(["no-kill"] if self.may_lose else [])]
        nodes += [f"nodelist={host_ranges(list(map(str, self.hosts)))}"] if self.hosts else []
        command = self.on_named_gpus() if whole else self.on_all_gpus()
        return nodes, [*_MAKE_SECRET], [*SRUN, *command]

    def on_named_gpus(self, *more: str) -> list[str]:
        """Return the command for a host that has all its GPUs; `more`: options of hosts."""
        return self.command((*more, "--gpus", ",".join(map(str, self.choice.gpus)), "--require-gpu"))

    def on_all_gpus(self, *more: str) -> list[str]:
        """Return the command for a host that sees its share of the GPUs alone."""
        number = self.size * len(self.choice.gpus)
        return self.command((*more, "--num-gpus", str(number), "--require-gpu"))


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


def jobset(start: HostsExport) -> str:
    """Return the manifest of a JobSet. Raises UsageError for words that are not UTF-8."""
    name = _name(start)
    container = {
        "name": "gputopo",
        "image": "IMAGE",
        "command": _words(start.on_all_gpus("--num-hosts", str(start.size), *_patience(start))),
        "env": [
            {"name": "JOBSET_NAME", "value": name},
            {"name": "MASTER_ADDR", "value": f"{name}-{_JOB}-0-0.{name}"},
            _secret(start),
        ],
        "resources": _resources(start),
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    pod = {
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],  # for NCCL
    }
    job = {
        "completionMode": "Indexed",
        "completions": start.size,
        "parallelism": start.size,
        "backoffLimit": 0,
        "template": {"spec": pod},
    }
    return _manifest(
        start,
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {"name": name},
            "spec": {
                "network": {"enableDNSHostnames": True, "subdomain": name},
                "failurePolicy": {"maxRestarts": 0},
                "replicatedJobs": [{"name": _JOB, "replicas": 1, "template": {"spec": job}}],
            },
        },
    )


def trainjob(start: HostsExport) -> str:
    """Return the manifest of a TrainJob. Raises UsageError for words that are not UTF-8."""
    runtime = {"apiGroup": "trainer.kubeflow.org", "kind": "ClusterTrainingRuntime"}
    trainer = {
        "image": "IMAGE",
        "command": _words(start.on_all_gpus(*_patience(start))),
        "numNodes": start.size,
        "resourcesPerNode": _resources(start),
        "env": [_secret(start)],
    }
    return _manifest(
        start,
        {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "metadata": {"name": _name(start)},
            "spec": {"runtimeRef": {**runtime, "name": "torch-distributed"}, "trainer": trainer},
        },
    )


def _resources(start: HostsExport) -> dict[str, Any]:
    return {"limits": {"nvidia.com/gpu": len(start.choice.gpus)}}


def _manifest(start: HostsExport, value: dict[str, Any]) -> str:
    """Return a document behind comments on what a user does with it. Raises UsageError for no UTF-8."""
    what = "gputopo and the program" if start.program else "gputopo and TensorFlow with CUDA"
    used = ", ".join(ascii(folder) for folder in start.folders)
    notes = f"# IMAGE: fill in an image that has {what}\n"
    notes += f"# Once: openssl rand -hex 32 | kubectl create secret generic {_name(start)} "
    notes += "--from-file=secret=/dev/stdin\n"
    notes += f"# Mount what the run reads and writes: {used}\n" if used else ""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError("the command is not UTF-8, as YAML must be", "write it into a script") from error
    # To some readers of YAML these are line breaks, or no printable characters (1.2.2, c-printable).
    return (
        notes
        + re.sub("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]", lambda one: f"\\u{ord(one[0]):04x}", text)
        + "\n"
    )


def _name(start: HostsExport) -> str:
    """Return a name by RFC 1035's rules for labels."""
    return re.sub(r"[^a-z0-9]+", "-", start.job_name.lower())[:_MAX_NAME].strip("-")


def _secret(start: HostsExport) -> dict[str, Any]:
    """Return the variable by which the pods know one another, of a Secret of the cluster."""
    return {"name": SECRET, "valueFrom": {"secretKeyRef": {"name": _name(start), "key": "secret"}}}


def _patience(start: HostsExport) -> tuple[str, ...]:
    """Return how long the pods wait for one another, unless that was asked for."""
    return () if _JOIN[0] in start.words else _JOIN


def _words(command: list[str]) -> list[str]:
    """Return words in which Kubernetes expands no variable: `$$` is a dollar sign there."""
    return [word.replace("$", "$$") for word in command]
