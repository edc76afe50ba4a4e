"""A run on several hosts for Slurm and for mpirun. Pure."""

import re
import shlex

from gputopo.launch.hosts.hostlists import fold
from gputopo.launch.spec.exports.start import HostsStart
from gputopo.values.errors import UsageError

# A host that ends, or fails, must not end the others: rank 0 does, after it has reported why. The CPUs of a
# rank are gputopo's choice, not one core (Slurm's and Open MPI's default for one task).
SRUN = ("srun", "--ntasks-per-node=1", "--kill-on-bad-exit=0", "--wait=0", "--no-kill", "--cpu-bind=none")
MPIRUN = ("mpirun", "--bind-to", "none")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def sbatch(start: HostsStart) -> str:
    """Return a batch script that starts it on whole nodes, as Slurm gives GPUs by number, not by place.

    Raises UsageError for hosts that are not nodes' names.
    """
    strange = next((host for host in start.hosts if host.port is not None or host.is_ip), None)
    if strange is not None:
        raise UsageError(
            f"--format sbatch names nodes, and {strange} is an address", "name the hosts as `sinfo -N` does"
        )
    names = [str(host) for host in start.hosts]
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={_UNSAFE.sub('-', start.job_name)}",
        f"#SBATCH --nodes={start.size}",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --exclusive",
        f"#SBATCH --gpus-per-node={start.has}",
        "#SBATCH --mem=0",
        *([f"#SBATCH --nodelist={fold(names)}"] if names else []),
        *(["#SBATCH --no-kill"] if start.may_lose else []),
        "# Whole nodes: Slurm gives GPUs by number, and this run names those of its plan on each.",
        f"cd -- {shlex.quote(start.folder)} || exit",
        f"exec {shlex.join([*SRUN, *start.on_named_gpus()])}",
    ]
    return "".join(f"{line}\n" for line in lines)


def hostfile(start: HostsStart) -> str:
    """Return a hostfile of Open MPI, with the command line in a comment.

    Raises UsageError without names, and for words that a comment cannot have.
    """
    if not start.hosts:
        raise UsageError("--format hostfile needs the names of the hosts", "add --hosts LIST")
    ports = all(host.port is None for host in start.hosts)
    listed = (fold if ports else ",".join)(str(host) for host in start.hosts)
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
