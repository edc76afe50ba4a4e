"""Plans for several hosts without a run: for hosts that are asked, for recordings, for identical hosts."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

import gputopo
from gputopo.launch.hosts.allocation import PORT, FoundHosts, claim_of
from gputopo.launch.hosts.asking import ask
from gputopo.launch.hosts.messages import Joining
from gputopo.launch.hosts.options import HostOptions
from gputopo.launch.hosts.planning import plan_hosts, request_of, target_alone
from gputopo.launch.hosts.saved_network import saved_network
from gputopo.launch.site import with_costs
from gputopo.planner import SavedNetwork
from gputopo.report import note
from gputopo.values.ends import HOSTS
from gputopo.values.errors import ExitCode, GputopoError, HardwareError, InputError, UsageError
from gputopo.values.run.all_reduce import parse

if TYPE_CHECKING:
    from gputopo.launch.hosts.starters import RankClaim
    from gputopo.launch.target import Target
    from gputopo.planner import Request
    from gputopo.values.machine import Machine
    from gputopo.values.run.plan import Plan


def plan_of_hosts(
    hosts: FoundHosts, options: HostOptions, request: "Request"
) -> "tuple[Plan, ExitCode] | None":
    """Ask all hosts, and plan for those that answer; None if rank 0 asks this host.

    The exit code is HARDWARE if a host does not answer. Raises GputopoError.
    """
    answers = ask(hosts, options, "plan", "" if request.no_history else "pairs")
    if not answers:
        return None
    there = [answer for answer in answers.values() if isinstance(answer, Joining)]
    plan = _planned(there, with_costs(request)).plan
    if len(there) == len(answers):
        return plan, ExitCode.OK
    note(f"planned for {len(there)} of {len(answers)} hosts: the others did not answer")
    return plan, ExitCode.HARDWARE


def plan_of_machines(machines: "Mapping[str, Machine | GputopoError]", request: "Request") -> "Plan":
    """Return the plan for hosts with these machines, by host name.

    One of them may be the output of nccl-tests on these hosts. Raises GputopoError, InputError for a machine
    that could not be read.
    """
    hosts: dict[str, Machine] = {}
    saved: SavedNetwork | None = None
    for name, machine in machines.items():
        if isinstance(machine, GputopoError):
            raise InputError(f"{name} cannot be read: {machine.what}", machine.hint)
        measured = machine.bandwidth
        if measured is not None and any(sample.source == HOSTS for sample in measured.samples):
            saved = SavedNetwork(measured, f"in {name}")
        else:
            hosts[name] = machine
    return _planned(_joined(hosts), request, saved).plan


def identical_hosts(
    options: HostOptions, request: "Request", machine: "Machine", shape: str
) -> "tuple[RankClaim, Target]":
    """Return the requested hosts, and the target if each has this machine and an equal share of the GPUs.

    `shape`: the format for which they are planned. Raises UsageError, NoPlanError.
    """
    claim = claim_of(options)
    if claim is None or claim.size is None or claim.size < 2:
        raise UsageError(f"--format {shape} is for several hosts", "add --hosts LIST")
    if not machine.gpus:
        raise UsageError(
            f"--format {shape} assumes that each host is like this machine, which has no GPU",
            "give the machine of one of the hosts: --from FILE (gputopo inspect --record FILE there)",
        )
    names = [str(host) for host in claim.hosts] or [f"host-{rank}" for rank in range(claim.size)]
    hosts = _joined(dict.fromkeys(names, machine))
    each = _gpus_of_each(claim.size, request, machine)
    chosen = target_alone(hosts[0], request_of(request, each, 0)).plan.choice.gpus
    return claim, _planned(hosts, msgspec.structs.replace(request, gpus=chosen, num_gpus=None))


def _gpus_of_each(size: int, request: "Request", machine: "Machine") -> int:
    """Return the number of GPUs of each host. Raises UsageError if they cannot be shared equally."""
    usable = {gpu.index for gpu in machine.gpus if not gpu.lost} - set(request.exclude)
    usable = usable if request.gpus is None else usable & set(request.gpus)
    if request.num_gpus is None:
        return len(usable)
    assert request.num_gpus != "auto"
    if request.num_gpus % size or request.num_gpus < size:
        raise UsageError(
            f"--num-gpus {request.num_gpus} cannot be shared equally by {size} hosts",
            f"request a multiple of {size}: it counts the GPUs of all hosts",
        )
    each = request.num_gpus // size
    if each > len(usable):
        raise UsageError(
            f"--num-gpus {request.num_gpus} is {each} of each host, and one has {len(usable)} usable GPUs",
            f"request at most {size * len(usable)}, or more hosts",
        )
    return each


def _joined(machines: "Mapping[str, Machine]") -> list[Joining]:
    """Return what hosts with these machines would send, by rank."""
    return [
        Joining(rank=rank, name=name, version=gputopo.__version__, address=name, port=PORT, machine=machine)
        for rank, (name, machine) in enumerate(machines.items())
    ]


def _planned(hosts: "Sequence[Joining]", request: "Request", saved: "SavedNetwork | None" = None) -> "Target":
    """Plan for hosts from their answers without claiming GPUs, and print the notes on it.

    `saved`: a measurement between them; None: the last one that was saved here.
    """
    if all(host.machine is None or not host.machine.gpus for host in hosts):
        raise HardwareError(
            "there is no GPU to plan for on any of the hosts",
            "plan for other machines with --from A.json B.json --fleet; gputopo run trains on CPU devices",
        )
    planned = plan_hosts(hosts, request, saved=saved or saved_network(hosts, request))
    asked = request.all_reduce
    if asked is not None and planned.target.others and parse(asked).name == "nccl_op":
        raise UsageError(
            f"--all-reduce {asked} works within one process, but each host has its own",
            "use --all-reduce hierarchical, or fewer GPUs than one host has: --num-gpus N",
        )
    for line in (*planned.says, *planned.target.plan.warnings):
        note(line)
    return planned.target
