"""The tf.distribute strategies, and the Keras programs, that `--strategy` names. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from gputopo.values.errors import UsageError
from gputopo.values.option import listed, nearest
from gputopo.values.run.plan import CPU_DEVICES, HOST_PS

Kind = Literal["mirrored", "central", "one-device", "multi_worker_mirrored"]
Reduction = Literal["nccl", "hierarchical", "one", "ring"]
Method = Literal["kuza55", "avolkov1", "fchollet"]

METHODS = get_args(Method)  # multi-GPU Keras programs, which train in their own way

MULTI_WORKER: Kind = "multi_worker_mirrored"  # of several hosts, with a process on each


@dataclass(frozen=True)
class StrategyName:
    """A strategy and, for those with copies, its reduction; None: the default of TensorFlow."""

    kind: Kind
    reduction: Reduction | None = None


STRATEGIES: dict[str, StrategyName] = {
    "mirrored": StrategyName("mirrored"),
    "mirrored:nccl": StrategyName("mirrored", "nccl"),
    "mirrored:hierarchical": StrategyName("mirrored", "hierarchical"),
    "mirrored:one": StrategyName("mirrored", "one"),
    "central": StrategyName("central"),
    "one-device": StrategyName("one-device"),
    "multi_worker_mirrored": StrategyName(MULTI_WORKER),
    "multi_worker_mirrored:nccl": StrategyName(MULTI_WORKER, "nccl"),
    "multi_worker_mirrored:ring": StrategyName(MULTI_WORKER, "ring"),
}
_ALSO = {  # class names of tf.distribute, without "Strategy", and short forms
    "centralstorage": "central",
    "onedevice": "one-device",
    "one": "one-device",
    "multiworkermirrored": MULTI_WORKER,
    "multi-worker-mirrored": MULTI_WORKER,
    "mwms": MULTI_WORKER,
}


def cpu_devices_of(strategy: str | None) -> int:
    """Return the CPU devices of each host by default: tf.distribute takes one on each of several hosts."""
    if strategy is None or strategy.lower() in METHODS:
        return CPU_DEVICES
    return 1 if read(strategy).kind == MULTI_WORKER else CPU_DEVICES


def read(name: str) -> StrategyName:
    """Parse a name, in any case. Raises UsageError that names the nearest ones."""
    kind, colon, reduction = name.lower().partition(":")
    kind = kind.removesuffix("strategy")
    asked = _ALSO.get(kind, kind) + colon + reduction
    if asked in STRATEGIES:
        return STRATEGIES[asked]
    known = (*STRATEGIES, *METHODS)
    near = nearest(asked, known)
    hint = f"did you mean {listed(near)}?" if near else f"the strategies are: {', '.join(known)}"
    raise UsageError(f"there is no strategy '{name}'", hint)


def read_strategy(_flag: str, text: str) -> dict[str, Any]:
    """Return the field of a spec that `--strategy` sets. Raises UsageError."""
    if text.lower() in METHODS:
        return {"method": text.lower()}
    read(text)
    return {"strategy": text}


JOB = "worker"
CLIENT = "client"  # job of a process that is none of the servers
_TASK = re.compile(rf"/job:{JOB}(?:/replica:\d+)?/task:(\d+)")


def device_name(kind: str, number: int, rank: int | None = None) -> str:
    """Return the name of a host's device. `rank`: of the host, None: the only one."""
    return f"/{kind}:{number}" if rank is None else f"{task_name(rank)}/device:{kind}:{number}"


def task_name(rank: int) -> str:
    """Return the name of a host's server."""
    return f"/job:{JOB}/task:{rank}"


def rank_of(device: str) -> int | None:
    """Return the rank of the host that a name stands for, None where it names no host."""
    found = _TASK.match(device)
    return None if found is None else int(found.group(1))


def host_of(device: str) -> str:
    """Return the CPU of the host that has the device."""
    return device_name("CPU", 0, rank_of(device))


def short_name(device: str) -> str:
    """Return the name as `device_name` makes it, of one as TensorFlow writes it.

    `/GPU:1` for `/job:localhost/replica:0/task:0/device:GPU:1` and for `/device:GPU:1`.
    """
    kind, _, number = device.rpartition("/")[2].rpartition(":")
    return device_name(kind.removeprefix("device:"), int(number), rank_of(device))


def host_names(names: Sequence[str]) -> list[str]:
    """Return what hosts are called, by rank: several of one name have their ranks besides."""
    return [name if names.count(name) == 1 else f"{name} (rank {rank})" for rank, name in enumerate(names)]


def rank_of_place(place: str, hosts: int) -> int:
    """Return N of a place for the variables `host:N`. Raises UsageError where so few hosts train."""
    rank = int(place.removeprefix(HOST_PS))
    if rank >= hosts:
        raise UsageError(
            f"--ps {place} is not among the {hosts} hosts that train", f"give host:0 to host:{hosts - 1}"
        )
    return rank
