"""The variables that starters give a process, those that tell hosts and ranks. Names and numbers are ours."""

import json
from collections.abc import Mapping, Sequence

Environ = dict[str, str]


def slurm_step(
    nodes: str = "n[1-2]",
    node: int = 0,
    *,
    count: int = 2,
    tasks: str = "1(x2)",
    step: str = "0",
    **more: str,
) -> Environ:
    """`srun`, Slurm 23.02 without GRES."""
    return {
        "SLURM_JOB_ID": "1234",
        "SLURM_JOB_NODELIST": nodes,
        "SLURM_MPI_TYPE": "none",
        "SLURM_NODEID": str(node),
        "SLURM_PROCID": str(node),
        "SLURM_STEP_ID": step,
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_STEP_NUM_NODES": str(count),
        "SLURM_STEP_TASKS_PER_NODE": tasks,
        "SLURMD_NODENAME": "n1",
        **more,
    }


# Slurm 24.05, with its PMIx and its topology.
SLURM_24 = {
    "PMIX_NAMESPACE": "slurm.pmix.1234.0",
    "PMIX_RANK": "1",
    "PMIX_SERVER_URI41": "pmix-server.35133;tcp4://127.0.0.1:43189",
    "SLURM_MPI_TYPE": "pmix",
}
# What sbatch and salloc leave in a shell of a job of four nodes, outside any step.
SLURM_JOB = {
    "SLURM_JOB_ID": "1234",
    "SLURM_JOB_NODELIST": "n[1-4]",
    "SLURM_NODEID": "0",
    "SLURM_PROCID": "0",
}


def open_mpi_4(rank: int = 0, size: int = 2, *, local: int = 1) -> Environ:
    """`mpirun` of Open MPI 4.1."""
    return {
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(local),
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": str(size),
        "OMPI_MCA_ess_base_jobid": "3512795137",
        "OMPI_MCA_ess_base_vpid": str(rank),
        "PMIX_NAMESPACE": "3512795137",
        "PMIX_RANK": str(rank),
    }


def open_mpi_5(rank: int = 0, size: int = 2, *, local: int = 1) -> Environ:
    """`mpirun` of Open MPI 5.0, started on n1."""
    return {
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(local),
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": str(size),
        "PMIX_HOSTNAME": f"n{rank + 1}",
        "PMIX_NAMESPACE": "prterun-n1-8525@1",
        "PMIX_RANK": str(rank),
    }


def intel_mpi(rank: int = 0, size: int = 2, *, local: int = 1) -> Environ:
    """`mpiexec.hydra` of Intel MPI 2021 and of MPICH 4."""
    return {
        "MPI_LOCALNRANKS": str(local),
        "MPI_LOCALRANKID": "0",
        "PMI_FD": "9",
        "PMI_RANK": str(rank),
        "PMI_SIZE": str(size),
    }


def torchrun(rank: int = 0, size: int = 2, *, local: int = 1) -> Environ:
    """A worker of torchrun 2.x."""
    return {
        "LOCAL_RANK": str(rank % local),
        "LOCAL_WORLD_SIZE": str(local),
        "MASTER_ADDR": "n1",
        "MASTER_PORT": "29500",
        "RANK": str(rank),
        "TORCHELASTIC_RUN_ID": "none",
        "WORLD_SIZE": str(size),
    }


# A node of a Kubeflow TrainJob, whose runtime names torchrun's options; its Job is indexed.
TRAIN_JOB = {
    "HOSTNAME": "mnist-node-0-1",
    "JOB_COMPLETION_INDEX": "1",
    "PET_MASTER_ADDR": "mnist-node-0-0.mnist",
    "PET_MASTER_PORT": "29500",
    "PET_NNODES": "2",
    "PET_NODE_RANK": "1",
}
# A pod of a JobSet "mnist" with a replicated job "workers".
JOBSET = {
    "HOSTNAME": "mnist-workers-0-1",
    "JOBSET_NAME": "mnist",
    "JOB_COMPLETION_INDEX": "1",
}
# A pod of an indexed Job "sweep".
INDEXED_JOB = {"HOSTNAME": "sweep-3", "JOB_COMPLETION_INDEX": "3", "KUBERNETES_SERVICE_HOST": "10.96.0.1"}


def tf_config(cluster: Mapping[str, Sequence[str]], kind: str, index: object = 0, **more: object) -> Environ:
    """TF_CONFIG of a task."""
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}, **more})}


def tf_job(kind: str = "worker", index: int = 0, **kinds: int) -> Environ:
    """A pod of a TFJob "mnist": by default a chief and two workers."""
    cluster = {
        name: [f"mnist-{name}-{number}.kubeflow.svc:2222" for number in range(count)]
        for name, count in (kinds or {"chief": 1, "worker": 2}).items()
    }
    return tf_config(cluster, kind, index, environment="cloud")


def ray_train(index: int = 0, workers: Sequence[str] = ("10.0.0.1:43211", "10.0.0.2:41877")) -> Environ:
    """A worker of Ray Train's TensorflowTrainer."""
    return {
        **tf_config({"worker": workers}, "worker", index),
        "RAY_JOB_ID": "01000000",
        "CUDA_VISIBLE_DEVICES": "0",
    }
