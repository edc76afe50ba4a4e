"""Names of devices and hosts, as TensorFlow writes them and as people read them."""

import re
from collections.abc import Sequence

from gputopo.values.errors import UsageError
from gputopo.values.run.plan import HOST_PS

JOB = "worker"
CLIENT = "client"  # job of a process that is not a server
_TASK = re.compile(rf"/job:{JOB}(?:/replica:\d+)?/task:(\d+)")


def device_name(kind: str, number: int, rank: int | None = None) -> str:
    """Return the name of a host's device. `rank`: of the host; None: there is only one."""
    return f"/{kind}:{number}" if rank is None else f"{task_name(rank)}/device:{kind}:{number}"


def task_name(rank: int) -> str:
    """Return the name of a host's server."""
    return f"/job:{JOB}/task:{rank}"


def rank_of(device: str) -> int | None:
    """Return the rank of the host in a name, or None if the name has no host."""
    match = _TASK.match(device)
    return None if match is None else int(match.group(1))


def host_of(device: str) -> str:
    """Return the CPU device of the host that has the device."""
    return device_name("CPU", 0, rank_of(device))


def short_name(device: str) -> str:
    """Return the short name of a device, in the form of `device_name`.

    `/GPU:1` for `/job:localhost/replica:0/task:0/device:GPU:1` and for `/device:GPU:1`.
    """
    kind, _, number = device.rpartition("/")[2].rpartition(":")
    return device_name(kind.removeprefix("device:"), int(number), rank_of(device))


def host_names(names: Sequence[str]) -> list[str]:
    """Return the names of hosts by rank; the rank is added if several have the same name."""
    return [name if names.count(name) == 1 else f"{name} (rank {rank})" for rank, name in enumerate(names)]


def rank_of_place(place: str, hosts: int) -> int:
    """Return N of a placement of the variables `host:N`. Raises UsageError if fewer hosts train."""
    rank = int(place.removeprefix(HOST_PS))
    if rank >= hosts:
        raise UsageError(
            f"--ps {place} is not among the {hosts} hosts that train", f"give host:0 to host:{hosts - 1}"
        )
    return rank
