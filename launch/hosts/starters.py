"""Rank, size and addresses by the variables of a starter: TFJob, Slurm, MPI, torchrun, Kubernetes, ... Pure.

Each reader returns the claim of its starter, or None where that has started nothing here that has a rank.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from gputopo.launch.hosts.hostlists import HostAddress, address, read_hosts
from gputopo.values.errors import UsageError
from gputopo.values.option import shown

Environ = Mapping[str, str]

# Slurm's steps that no srun has started, from slurm.h: interactive, batch script, extern.
_FIRST_RESERVED_STEP = 0xFFFFFFFA
# Tasks of TensorFlow's clusters that train, in the order of their ranks: "master" is the old name of "chief".
_TRAINING_TASKS = ("chief", "master", "worker")
_PMIX_SERVERS = tuple(f"PMIX_SERVER_URI{version}" for version in ("41", "4", "3", "21", "2"))


class RankClaim(msgspec.Struct, frozen=True, kw_only=True):
    """What one source gives; None and () where it gives nothing."""

    source: str  # its name in messages
    remove: str  # how to do without it
    rank: int | None = None
    size: int | None = None
    hosts: tuple[HostAddress, ...] = ()  # all in rank order, or that of rank 0 alone
    job: str | None = None
    tasks_per_host: int = 1  # the highest number on a host that is known
    one_each: str = ""  # how to start one on each


def tf_config(environ: Environ) -> RankClaim | None:
    """Return the claim of TF_CONFIG, as TFJob and Ray Train set it. Raises UsageError.

    chief, master and worker tasks are the ranks, in this order. A ps or an evaluator is none: the hosts that
    train hold the variables, and an evaluation is a run of its own.
    """
    text = environ.get("TF_CONFIG", "")
    if not text.strip():
        return None
    config = _json_object(text)
    cluster, task = config.get("cluster") or {}, config.get("task") or {}
    remove = "unset TF_CONFIG"
    if not isinstance(cluster, dict) or not isinstance(task, dict):
        raise UsageError("TF_CONFIG has no cluster and task of TensorFlow's form", remove)
    training = {kind: _tasks(kind, cluster.get(kind)) for kind in _TRAINING_TASKS}
    ranks: list[tuple[Any, Any]] = [
        (kind, number) for kind, tasks in training.items() for number in range(len(tasks))
    ]
    kind, index = task.get("type"), task.get("index", 0)
    index = _count(index) if isinstance(index, str) else index
    if kind == "evaluator":
        raise UsageError(
            "this is the evaluator of TF_CONFIG's cluster, which does not train",
            "evaluate its checkpoints: gputopo run --eval --checkpoints DIR --num-hosts 1",
        )
    if cluster.get("ps") and ranks:
        raise UsageError(
            "TF_CONFIG has ps tasks, and gputopo stores variables on the hosts that train",
            "start the cluster without ps; --ps chooses the device of the variables",
        )
    if len(ranks) < 2:
        return None
    if (kind, index) not in ranks:
        raise UsageError(
            f"TF_CONFIG has this as task {shown(str(index))} of {shown(str(kind))}, which its cluster lacks",
            f"correct its task, or {remove}",
        )
    hosts = read_hosts("TF_CONFIG", ",".join(one for tasks in training.values() for one in tasks))
    # Several ports of a loopback address are hosts of a rehearsal; of another they are tasks of one host.
    names = [one.name for one in hosts if not _is_loopback(one)]
    return RankClaim(
        source="TF_CONFIG",
        remove=remove,
        rank=ranks.index((kind, index)),
        size=len(ranks),
        hosts=hosts,
        tasks_per_host=max(map(names.count, names), default=1),
        one_each="one worker a host, with all its GPUs (Ray Train: num_workers is the number of hosts)",
    )


def slurm(environ: Environ) -> RankClaim | None:
    """Return the claim of a Slurm step; the variables of a job alone are no rank. Raises UsageError.

    The rank is the index of the host in SLURM_STEP_NODELIST, which with -m arbitrary is not that of the task.
    """
    step, job = _number(environ, "SLURM_STEP_ID"), _number(environ, "SLURM_JOB_ID")
    if step is None or step >= _FIRST_RESERVED_STEP:
        return None
    if "OMPI_COMM_WORLD_SIZE" in environ or "MPI_LOCALNRANKS" in environ:
        return None  # mpirun starts its daemons by srun: this step is theirs
    source, nodes = f"Slurm step {job}.{step}", environ.get("SLURM_STEP_NODELIST", "")
    size = _number(environ, "SLURM_STEP_NUM_NODES") or 1
    tasks = _most_tasks(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    is_shell = "SLURM_PTY_PORT" in environ and _number(environ, "SLURM_PROCID") == 0
    if size < 2 and (tasks < 2 or is_shell):
        return None  # with --pty task 0 alone goes on
    return RankClaim(
        source=source,
        remove="unset SLURM_STEP_ID",
        rank=_number(environ, "SLURM_NODEID"),
        size=size,
        hosts=read_hosts(f"SLURM_STEP_NODELIST of {source}", nodes) if nodes else (),
        job=f"{job}.{step}",
        tasks_per_host=tasks,
        one_each="srun --ntasks-per-node=1",
    )


def mpi(environ: Environ) -> RankClaim | None:
    """Return the claim of Open MPI, or of Hydra: MPICH, Intel MPI. Raises UsageError.

    They name no hosts. In a Slurm job mpirun goes through the nodes in order. Open MPI names the host of
    mpirun, which is that of rank 0 where the daemons of the hosts are numbered as the ranks.
    """
    size, rank = _number(environ, "OMPI_COMM_WORLD_SIZE"), _number(environ, "OMPI_COMM_WORLD_RANK")
    if size is not None:
        mpirun = _mpirun_host(environ)
        leader = (mpirun,) if mpirun is not None and _daemon(environ) == rank else ()
        return RankClaim(
            source="Open MPI",
            remove="unset OMPI_COMM_WORLD_SIZE",
            rank=rank,
            size=size,
            hosts=_nodes_of_job(environ, rank, size) or master(environ) or leader,
            job=environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid"),
            tasks_per_host=_number(environ, "OMPI_COMM_WORLD_LOCAL_SIZE") or 1,
            one_each="mpirun --map-by ppr:1:node",
        )
    size, rank = _number(environ, "PMI_SIZE"), _number(environ, "PMI_RANK")
    started = "MPI_LOCALNRANKS" in environ or "PMI_LOCAL_SIZE" in environ
    if size is None or rank is None or not (started or "SLURM_STEP_ID" not in environ):
        return None  # Slurm's own PMI: the step has it all
    return RankClaim(
        source="MPI (PMI_SIZE)",
        remove="unset PMI_SIZE",
        rank=rank,
        size=size,
        hosts=_nodes_of_job(environ, rank, size) or master(environ),
        tasks_per_host=_number(environ, "MPI_LOCALNRANKS") or _number(environ, "PMI_LOCAL_SIZE") or 1,
        one_each="mpiexec -ppn 1",
    )


def torch(environ: Environ) -> RankClaim | None:
    """Return the claim of RANK, WORLD_SIZE and MASTER_ADDR, as torchrun, PyTorchJob and scripts set them.

    Or PET_NNODES, PET_NODE_RANK of a TrainJob, which are torchrun's options. A rank without a size, or a size
    without a rank, is not of this process; a rank that is no number is one that is not known. Raises nothing.
    """
    tasks, nodes = _number(environ, "LOCAL_WORLD_SIZE"), _number(environ, "PET_NNODES")
    if tasks is None and nodes is not None and "PET_NODE_RANK" in environ:
        return RankClaim(
            source="PET_NNODES",
            remove="unset PET_NNODES",
            rank=_number(environ, "PET_NODE_RANK"),
            size=nodes,
            hosts=master(environ, "PET_MASTER"),
            job=_given(environ, "PET_RDZV_ID"),
        )
    tasks = _number(environ, "LOCAL_SIZE") if tasks is None else tasks  # of DeepSpeed
    size, node = _number(environ, "WORLD_SIZE"), _number(environ, "NODE_RANK")
    rank = _number(environ, "RANK")
    if size is None or not any(environ.get(name, "").strip() for name in ("RANK", "NODE_RANK")):
        return None
    if tasks is None:
        others = rank is not None and node is not None and rank != node
        tasks = max((_number(environ, "LOCAL_RANK") or 0) + 1, 2 if others else 1)
    return RankClaim(
        source="WORLD_SIZE",
        remove="unset WORLD_SIZE",
        rank=node if rank is None else rank,
        size=size,
        hosts=master(environ),
        job=_given(environ, "TORCHELASTIC_RUN_ID"),
        tasks_per_host=tasks,
        one_each="torchrun --nproc-per-node 1",
    )


def indexed_job(environ: Environ) -> RankClaim | None:
    """Return the claim of the index of a Kubernetes Job, which has no size. Raises nothing.

    In a JobSet (JOBSET_NAME) the pods are hosts of its headless service, named as the JobSet.
    """
    index = _number(environ, "JOB_COMPLETION_INDEX")
    if index is None:
        return None
    jobset, pod, ending = environ.get("JOBSET_NAME"), environ.get("HOSTNAME", ""), f"-{index}"
    first = address(f"{pod.removesuffix(ending)}-0.{jobset}") if jobset and pod.endswith(ending) else None
    return RankClaim(
        source=f"JobSet {shown(jobset)}" if jobset else "JOB_COMPLETION_INDEX",
        remove="unset JOB_COMPLETION_INDEX",
        rank=index,
        hosts=master(environ) or (() if first is None else (first,)),
        job=jobset,
    )


def master(environ: Environ, prefix: str = "MASTER") -> tuple[HostAddress, ...]:
    """Return the host that MASTER_ADDR names, with MASTER_PORT, where a script has set it for all ranks."""
    host = address(environ.get(f"{prefix}_ADDR", "").strip(), _number(environ, f"{prefix}_PORT"))
    return () if host is None else (host,)


def _number(environ: Environ, name: str) -> int | None:
    return _count(environ.get(name, ""))


def _count(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


def _given(environ: Environ, name: str) -> str | None:
    """Return a variable's text; torchrun writes none where it was given nothing."""
    text = environ.get(name, "")
    return None if text in ("", "none") else text


def _json_object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"TF_CONFIG is no JSON: {error}", "correct it, or unset TF_CONFIG") from error
    if not isinstance(found, dict):
        raise UsageError("TF_CONFIG is no JSON object", "correct it, or unset TF_CONFIG")
    return found


def _tasks(kind: str, tasks: Any) -> list[str]:
    """Return the addresses of the tasks of a kind, which a list has, or an object by index.

    A dynamic cluster (enableDynamicWorker of a TFJob) shows each task only some others. Raises UsageError.
    """
    if isinstance(tasks, dict) and all(_count(key) is not None for key in tasks):
        numbers = sorted(map(int, tasks))
        if numbers != list(range(len(numbers))):
            raise UsageError(
                f"TF_CONFIG has {kind} {', '.join(map(str, numbers))} and not all before: a dynamic cluster",
                "start one whose tasks are all known, or unset TF_CONFIG and name the hosts by --hosts LIST",
            )
        tasks = [tasks[key] for key in sorted(tasks, key=int)]
    if not isinstance(tasks or [], list) or not all(isinstance(one, str) for one in tasks or []):
        raise UsageError(f"TF_CONFIG has no list of addresses for {kind}", "correct it, or unset TF_CONFIG")
    return tasks or []


def _is_loopback(host: HostAddress) -> bool:
    return host.name is not None and (host.name in ("localhost", "::1") or host.name.startswith("127."))


def _most_tasks(text: str) -> int:
    """Return the highest number of Slurm's `4(x2),3`; 1 where there is none."""
    return max((_count(part.partition("(")[0]) or 1 for part in text.split(",")), default=1)


def _nodes_of_job(environ: Environ, rank: int | None, size: int) -> tuple[HostAddress, ...]:
    """Return the first nodes of a Slurm job where this one has the place of its rank among them, else ()."""
    own = environ.get("SLURMD_NODENAME") or environ.get("PMIX_HOSTNAME") or ""
    nodes = environ.get("SLURM_JOB_NODELIST", "")
    if size < 2 or rank is None or not own or not nodes:
        return ()
    hosts = read_hosts("SLURM_JOB_NODELIST", nodes)[:size]
    has_place = rank < size == len(hosts) and str(hosts[rank].name).partition(".")[0] == own.partition(".")[0]
    return hosts if has_place else ()


def _mpirun_host(environ: Environ) -> HostAddress | None:
    """Return the host of mpirun: ORTE's URI (Open MPI 4), or PRRTE's name of the job (5)."""
    found = re.search(
        r"tcp://([0-9.]+)[,:]|tcp6://\[([0-9a-f:]+)\]", environ.get("OMPI_MCA_orte_hnp_uri", "")
    )
    named = re.fullmatch(r"prterun-(.+)-[0-9]+@[0-9]+", environ.get("PMIX_NAMESPACE", ""))
    return address(found[1] or found[2] if found else named[1] if named else "")


def _daemon(environ: Environ) -> int | None:
    """Return the number of the daemon that started this process; that of mpirun itself is 0."""
    texts = [environ[name] for name in _PMIX_SERVERS if name in environ]
    found = re.match(r"[^;]*\.([0-9]{1,9});", texts[0]) if texts else None
    return int(found[1]) if found else None
