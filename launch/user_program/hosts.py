"""A program of the user on several hosts: the variables by which it finds the other hosts.

gputopo starts one process on each host. Variables that the user or the starter has set have precedence. Each
host records its own program. If one fails, the starter ends the others.
"""

import json
from collections.abc import Mapping, Sequence

from gputopo.launch.hosts import starters
from gputopo.topology import near_rdma_ports
from gputopo.values.errors import UsageError
from gputopo.values.machine import Machine

TF_CONFIG = "TF_CONFIG"
# For PyTorch and other programs with these variables; torchrun has its options in PET_*.
_RANK, _ADDRESS = ("RANK", "WORLD_SIZE"), ("MASTER_ADDR", "MASTER_PORT")
_OF_PROGRAMS = (TF_CONFIG, "WORLD_SIZE", "PET_NNODES")  # sources that a program reads itself
_INTERFACE, _HCA = "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA"


def cluster_variables(workers: Sequence[str], index: int, master: tuple[str, int]) -> dict[str, str]:
    """Return the variables of host `index` of a program.

    `workers`: an address with a free port for each host that takes part, by rank. `master`: another free port
    of rank 0.
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


def unset_variables(variables: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are not set yet.

    If a rank or a size is set, neither is returned, because they describe the same processes.
    """
    given = {name for name, text in environ.items() if text.strip()}
    if given.intersection(_RANK):
        given |= {*_RANK}
    return {name: text for name, text in variables.items() if name not in given}


def require_all(environ: Mapping[str, str], hosts: int, taking_part: int) -> None:
    """Raise UsageError if the starter gives the program more hosts than take part.

    The program would wait for hosts that are not started.
    """
    named = next((claim for claim in starters.claims(environ) if claim.source in _OF_PROGRAMS), None)
    if named is not None and taking_part < hosts:
        raise UsageError(
            f"the plan uses {taking_part} of {hosts} hosts, but the program waits for all of {named.source}",
            f"request GPUs of all hosts, or {named.remove}",
        )


def nccl_variables(interface: str | None, machine: Machine | None, gpus: Sequence[int]) -> dict[str, str]:
    """Return the variables for NCCL's interfaces between hosts, if known; `=` means an exact name.

    `interface`: of this host's address on rank 0's network. The RDMA ports are the active ports of the cards
    nearest to each of the GPUs.
    """
    variables = {} if interface is None else {_INTERFACE: f"={interface}"}
    near = near_rdma_ports(machine, gpus) if machine is not None else ()
    ports = ",".join(f"{port.rdma_device}:{port.rdma_port or 1}" for port, _ in near)
    return {**variables, **({_HCA: f"={ports}"} if ports else {})}
