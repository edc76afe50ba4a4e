"""A program of the user on several hosts: the variables by which it finds the others.

One process a host: that which gputopo starts there. What the user or the starter has set stands. Each host
records its own program; what ends the others if one fails is the starter.
"""

import json
from collections.abc import Mapping, Sequence

from gputopo.launch.hosts import starters
from gputopo.planner.network import rdma_ports
from gputopo.values.errors import UsageError
from gputopo.values.machine import Machine

TF_CONFIG = "TF_CONFIG"
# Of PyTorch and what reads the same; torchrun has its options in PET_*.
_RANK, _ADDRESS = ("RANK", "WORLD_SIZE"), ("MASTER_ADDR", "MASTER_PORT")
_OF_PROGRAMS = (TF_CONFIG, "WORLD_SIZE", "PET_NNODES")  # sources that a program reads itself
_INTERFACE, _HCA = "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA"


def cluster_variables(workers: Sequence[str], index: int, master: tuple[str, int]) -> dict[str, str]:
    """Return the variables of host `index` of a program.

    `workers`: an address with a free port of each host that takes part, by rank; `master`: another one of
    rank 0.
    """
    name, port = master
    config = {"cluster": {"worker": list(workers)}, "task": {"type": "worker", "index": index}}
    return {
        TF_CONFIG: json.dumps(config),
        "RANK": str(index),
        "WORLD_SIZE": str(len(workers)),
        "MASTER_ADDR": name,
        "MASTER_PORT": str(port),
    }


def unset(variables: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return those of the variables that are to be set: not given yet.

    A rank and a size count together, as numbers of the same processes.
    """
    given = {name for name, text in environ.items() if text.strip()}
    if given.intersection(_RANK):
        given |= {*_RANK}
    return {name: text for name, text in variables.items() if name not in given}


def require_all(environ: Mapping[str, str], hosts: int, taking_part: int) -> None:
    """Raise UsageError where the starter has named more hosts to the program than take part.

    It would wait for those that are not started.
    """
    named = next((one for one in starters.claims(environ) if one.source in _OF_PROGRAMS), None)
    if named is not None and taking_part < hosts:
        raise UsageError(
            f"the plan uses {taking_part} of {hosts} hosts, but the program waits for all of {named.source}",
            f"request GPUs of all hosts, or {named.remove}",
        )


def nccl_variables(interface: str | None, machine: Machine | None, gpus: Sequence[int]) -> dict[str, str]:
    """Return what NCCL is to use between hosts, where that is known; `=` names exactly these.

    `interface`: that of this host's address on rank 0's network. The RDMA ports are those that are active, of
    the cards nearest to each of the GPUs.
    """
    found = {} if interface is None else {_INTERFACE: f"={interface}"}
    near = rdma_ports(machine, gpus) if machine is not None else ()
    ports = ",".join(f"{port.rdma_device}:{port.rdma_port or 1}" for port, _ in near)
    return {**found, **({_HCA: f"={ports}"} if ports else {})}
