"""Rank, number of hosts and addresses from TF_CONFIG, and from the variables of starters in one table."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from gputopo.launch.hosts.hostlists import HostAddress, address, read_hosts
from gputopo.values.errors import UsageError
from gputopo.values.option import shown

Environ = Mapping[str, str]

# Slurm's steps that srun has not started (slurm.h): interactive, batch script, extern.
_FIRST_RESERVED_STEP = 0xFFFFFFFA
# Tasks of TensorFlow's clusters that train, in rank order; "master" is the old name of "chief".
_TRAINING_TASKS = ("chief", "master", "worker")

# Variables of MPICH and Intel MPI; Slurm's own PMI sets only their other variables.
_LOCAL_OF_HYDRA = ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE")


class RankClaim(msgspec.Struct, frozen=True, kw_only=True):
    """The rank, size and hosts that one source gives; None or () for what it does not give."""

    source: str  # its name in messages
    remove: str  # how to stop using this source, for messages
    rank: int | None = None
    size: int | None = None
    hosts: tuple[HostAddress, ...] = ()  # all hosts in rank order, or only the host of rank 0
    job: str | None = None
    tasks_per_host: int = 1  # the highest known number on a host
    one_each: str = ""  # how to start one task on each host

    @property
    def is_of_several(self) -> bool:
        """Whether the source has several hosts or several tasks."""
        return (self.size or 0) > 1 or self.tasks_per_host > 1


def master(environ: Environ, prefix: str = "MASTER") -> tuple[HostAddress, ...]:
    """Return the host in MASTER_ADDR, with MASTER_PORT, if a script has set it for all ranks."""
    host = address(environ.get(f"{prefix}_ADDR", "").strip(), _number(environ, f"{prefix}_PORT"))
    return () if host is None else (host,)


def _step(environ: Environ, claim: RankClaim) -> RankClaim | None:
    """Return None for a Slurm job outside a step, and for a shell of srun --pty, which has only task 0."""
    step = _number(environ, "SLURM_STEP_ID")
    if step is None or step >= _FIRST_RESERVED_STEP:
        return None
    is_shell = "SLURM_PTY_PORT" in environ and _number(environ, "SLURM_PROCID") == 0
    return None if is_shell and claim.size == 1 else claim


def _nodes_of_job(environ: Environ, claim: RankClaim) -> RankClaim:
    """Add the Slurm job's nodes if this node is at its rank's index: mpirun then assigns ranks in order."""
    node = environ.get("SLURMD_NODENAME") or environ.get("PMIX_HOSTNAME") or ""
    nodes = environ.get("SLURM_JOB_NODELIST", "")
    rank, size = claim.rank, claim.size or 0
    if size < 2 or rank is None or not node or not nodes:
        return claim
    hosts = read_hosts("SLURM_JOB_NODELIST", nodes)[:size]
    if rank < size == len(hosts) and not hosts[rank].differs(HostAddress(node)):
        return msgspec.structs.replace(claim, hosts=hosts)
    return claim


def _torch(environ: Environ, claim: RankClaim) -> RankClaim:
    """Derive the tasks per host from LOCAL_RANK, or from NODE_RANK, if no variable has their number."""
    rank, node = _number(environ, "RANK"), _number(environ, "NODE_RANK")
    if claim.tasks_per_host > 1 or any(name in environ for name in ("LOCAL_WORLD_SIZE", "LOCAL_SIZE")):
        return claim
    others = rank is not None and node is not None and rank != node
    tasks = max((_number(environ, "LOCAL_RANK") or 0) + 1, 2 if others else 1)
    return msgspec.structs.replace(claim, tasks_per_host=tasks)


class Starter(NamedTuple):
    """The variables of a starter. In a tuple, the first that is set is used; {NAME} is a variable's text."""

    source: str
    size: str  # number of hosts; "" if no variable has it
    rank: tuple[str, ...]
    nodes: str = ""  # a list of all hosts, in rank order
    master: str = "MASTER"  # prefix of the address and port of rank 0's host
    job: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()  # number of tasks on a host
    one_each: str = ""
    needs: tuple[str, ...] = ()  # one of these must be set
    unless: tuple[str, ...] = ()  # set by a starter inside this one, which then applies instead
    adapt: Callable[[Environ, RankClaim], RankClaim | None] = lambda environ, claim: claim


# In order of precedence. The rank of a Slurm step is the host's index in SLURM_STEP_NODELIST, which is not
# the task's index under -m arbitrary. mpirun starts daemons with srun, whose step does not have the ranks.
# DeepSpeed sets LOCAL_SIZE; a TrainJob sets variables named after torchrun's options (PET_*).
STARTERS = (
    Starter(
        source="Slurm step {SLURM_JOB_ID}.{SLURM_STEP_ID}",
        size="SLURM_STEP_NUM_NODES",
        rank=("SLURM_NODEID",),
        nodes="SLURM_STEP_NODELIST",
        master="",
        job=("{SLURM_JOB_ID}.{SLURM_STEP_ID}",),
        tasks=("SLURM_STEP_TASKS_PER_NODE",),
        one_each="srun --ntasks-per-node=1",
        needs=("SLURM_STEP_ID",),
        unless=("OMPI_COMM_WORLD_SIZE", "MPI_LOCALNRANKS"),
        adapt=_step,
    ),
    Starter(
        source="Open MPI",
        size="OMPI_COMM_WORLD_SIZE",
        rank=("OMPI_COMM_WORLD_RANK",),
        job=("{PMIX_NAMESPACE}", "{OMPI_MCA_ess_base_jobid}"),
        tasks=("OMPI_COMM_WORLD_LOCAL_SIZE",),
        one_each="mpirun --map-by ppr:1:node",
        adapt=_nodes_of_job,
    ),
    Starter(
        source="MPI (PMI_SIZE)",
        size="PMI_SIZE",
        rank=("PMI_RANK",),
        tasks=_LOCAL_OF_HYDRA,
        one_each="mpiexec -ppn 1",
        needs=_LOCAL_OF_HYDRA,
        unless=("OMPI_COMM_WORLD_SIZE",),
        adapt=_nodes_of_job,
    ),
    Starter(
        source="PET_NNODES",
        size="PET_NNODES",
        rank=("PET_NODE_RANK",),
        master="PET_MASTER",
        job=("{PET_RDZV_ID}",),
        needs=("PET_NODE_RANK",),
        unless=("LOCAL_WORLD_SIZE",),
    ),
    Starter(
        source="WORLD_SIZE",
        size="WORLD_SIZE",
        rank=("RANK", "NODE_RANK"),
        job=("{TORCHELASTIC_RUN_ID}",),
        tasks=("LOCAL_WORLD_SIZE", "LOCAL_SIZE"),
        one_each="torchrun --nproc-per-node 1",
        needs=("RANK", "NODE_RANK"),
        adapt=_torch,
    ),
)
# A Kubernetes Job, which does not give the number of pods.
INDEXED_JOB = Starter(
    source="the indexed Job {JOBSET_NAME}",
    size="",
    rank=("JOB_COMPLETION_INDEX",),
    job=("{JOBSET_NAME}",),
    needs=("JOB_COMPLETION_INDEX",),
)


def claim_by(starter: Starter, environ: Environ) -> RankClaim | None:
    """Return the claim of a starter, or None if it has not started this process. Raises UsageError."""
    size = _number(environ, starter.size)
    is_set = not starter.needs or any(environ.get(name, "").strip() for name in starter.needs)
    if not is_set or any(name in environ for name in starter.unless):
        return None
    if size is None and starter.size and not starter.nodes:
        return None
    nodes = environ.get(starter.nodes, "")
    source = _filled(starter.source, environ).strip()
    claim = RankClaim(
        source=source,
        remove=f"unset {starter.needs[0] if starter.nodes else starter.size or starter.rank[0]}",
        rank=next((number for name in starter.rank if (number := _number(environ, name)) is not None), None),
        size=1 if size is None and starter.nodes else size,
        hosts=read_hosts(f"{starter.nodes} of {source}", nodes) if nodes else master(environ, starter.master),
        job=next((job for text in starter.job if (job := _filled(text, environ)) not in ("", "none")), None),
        tasks_per_host=next((_tasks(environ[name]) for name in starter.tasks if name in environ), 1),
        one_each=starter.one_each,
    )
    return starter.adapt(environ, claim)


def claims(environ: Environ) -> Iterator[RankClaim]:
    """Yield the claims of TF_CONFIG and the starters, in order of precedence. Raises UsageError."""
    yield from filter(None, (tf_config(environ), *(claim_by(starter, environ) for starter in STARTERS)))


class _Task(msgspec.Struct, frozen=True):
    type: str = ""
    index: int | str = 0


class _TfConfig(msgspec.Struct, frozen=True):
    cluster: dict[str, list[str]] = {}
    task: _Task = _Task()


def tf_config(environ: Environ) -> RankClaim | None:
    """Return the claim of TF_CONFIG, as TFJob and Ray Train set it. Raises UsageError.

    chief, master and worker tasks are the ranks, in this order. A ps or an evaluator has no rank: the hosts
    that train hold the variables, and an evaluation is a separate run.
    """
    text = environ.get("TF_CONFIG", "")
    if not text.strip():
        return None
    remove = "unset TF_CONFIG"
    try:
        config = msgspec.json.decode(text.encode(errors="replace"), type=_TfConfig)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"TF_CONFIG cannot be read: {error}", f"correct it, or {remove}") from error
    kind, index = config.task.type, str(config.task.index)
    tasks = [(name, task) for name in _TRAINING_TASKS for task in config.cluster.get(name, ())]
    ranks = [(name, str(n)) for name in _TRAINING_TASKS for n in range(len(config.cluster.get(name, ())))]
    if kind == "evaluator":
        raise UsageError(
            "this is the evaluator of TF_CONFIG's cluster, which does not train",
            "evaluate its checkpoints: gputopo run --eval --checkpoints DIR --num-hosts 1",
        )
    if config.cluster.get("ps") and ranks:
        raise UsageError(
            "TF_CONFIG has ps tasks, and gputopo stores variables on the hosts that train",
            "start the cluster without ps; --ps chooses the device of the variables",
        )
    if len(ranks) < 2:
        return None
    if (kind, index) not in ranks:
        raise UsageError(
            f"TF_CONFIG has this as task {shown(index)} of {shown(kind)}, which is not in its cluster",
            f"correct its task, or {remove}",
        )
    hosts = read_hosts("TF_CONFIG", ",".join(task for _, task in tasks))
    # Several ports of one address are several tasks on one host. On a loopback address they are the hosts of
    # a rehearsal.
    names = [host.name for host in hosts if not _is_loopback(host)]
    return RankClaim(
        source="TF_CONFIG",
        remove=remove,
        rank=ranks.index((kind, index)),
        size=len(ranks),
        hosts=hosts,
        tasks_per_host=max(map(names.count, names), default=1),
        one_each="one worker per host, with all its GPUs (Ray Train: num_workers is the number of hosts)",
    )


def _number(environ: Environ, name: str) -> int | None:
    text = environ.get(name, "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


def _filled(text: str, environ: Environ) -> str:
    """Return a text with variables filled in; unprintable characters become question marks."""
    return re.sub(r"\{(\w+)\}", lambda name: re.sub(r"[^\w.@:-]", "?", environ.get(name[1], "")), text)


def _tasks(text: str) -> int:
    """Return the highest number in Slurm's `4(x2),3`, or 1 if there is none."""
    numbers = re.findall(r"(?:^|,)([0-9]{1,15})", text)
    return max(map(int, numbers), default=1)


def _is_loopback(host: HostAddress) -> bool:
    return host.name is not None and (host.name in ("localhost", "::1") or host.name.startswith("127."))
