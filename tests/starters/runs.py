"""Trainings of two or three hosts, as they are typed for each starter."""

import sys
from pathlib import Path

GPUTOPO = (sys.executable, "-m", "gputopo")
# Open MPI wants to be asked twice before it runs as root; it passes on only what -x names.
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
ENDLESS = ("--num-batches", "1000000")

# By the starter, before `gputopo run`; and after it, where gputopo starts the hosts by ssh.
WAYS = {
    "srun": (("srun", "--nodes={n}", "--ntasks-per-node=1"), ()),
    "mpirun": (("mpirun", "-x", "GPUTOPO_HOME", "--host", "{hosts}"), ("--hosts", "{hosts}")),
    "ssh": ((), ("--hosts", "{hosts}")),
}


def run(way: str, *options: str, size: int = 2) -> list[str]:
    """Return the command of a training on the CPU of hosts n1, n2, ..."""
    before, after = WAYS[way]
    given = {"n": size, "hosts": ",".join(f"n{number}" for number in range(1, size + 1))}
    own = ("run", "--model", "trivial", "--cpu", "--num-gpus", str(size), *options)
    return [word.format(**given) for word in (*before, *GPUTOPO, *own, *after)]


def environ(home: Path) -> dict[str, str]:
    """Return the variables of who types it."""
    return {**AS_ROOT, "GPUTOPO_HOME": str(home), "CUDA_VISIBLE_DEVICES": ""}
