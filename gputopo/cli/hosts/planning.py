"""`gputopo plan` for several hosts: those that are asked, or those of files."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import gputopo
from gputopo.cli.hosts.asking import ask
from gputopo.cli.hosts.fleet import readings
from gputopo.cli.hosts.meeting import saved_network
from gputopo.cli.printing import note
from gputopo.launch.hosts.allocation import PORT, HostOptions
from gputopo.launch.hosts.hostlists import HostAddress
from gputopo.launch.hosts.messages import Joining
from gputopo.values.errors import ExitCode, GputopoError, HardwareError, InputError, UsageError

if TYPE_CHECKING:
    from gputopo.launch.hosts.earlier import EarlierRuns
    from gputopo.launch.spec.target import Target
    from gputopo.planner import Request
    from gputopo.values.run.plan import Plan


def plan_of_hosts(
    hosts: Sequence[HostAddress], options: HostOptions, request: "Request", show: "Callable[[Plan], None]"
) -> int:
    """Ask all hosts, plan for those that answer, show it, and return the exit code. Raises GputopoError."""
    from gputopo.launch.jobs.before import earlier_of_hosts

    found = ask(hosts, options, "plan", "" if request.no_history else "pairs")
    there = [one for one in found if isinstance(one, Joining)]
    earlier = earlier_of_hosts(there[0].machine, request)
    show(planned(there, request, earlier).plan)
    if len(there) < len(found):
        note(f"planned for {len(there)} of {len(found)} hosts: the others did not answer")
        return ExitCode.HARDWARE
    return ExitCode.OK


def plan_of_files(sources: Sequence[str], request: "Request") -> "Plan":
    """Return the plan of the hosts of several files. Raises GputopoError, InputError for one not read."""
    if len(sources) < 2:
        raise UsageError(
            "--fleet plans for several hosts, and needs a file of each of two or more",
            "give --from A.json B.json ...: what gputopo inspect --record writes on each host",
        )
    hosts = []
    for rank, (name, found) in enumerate(readings(sources).items()):
        if isinstance(found, GputopoError):
            raise InputError(f"{name} cannot be read: {found.what}", found.hint)
        hosts.append(
            Joining(rank=rank, name=name, version=gputopo.__version__, address=name, port=PORT, machine=found)
        )
    return planned(hosts, request).plan


def planned(hosts: "Sequence[Joining]", request: "Request", earlier: "EarlierRuns | None" = None) -> "Target":
    """Plan for hosts from what they brought, claiming nothing, and print what is to be said about it.

    `earlier`: runs of this host with others.
    """
    from gputopo.launch.hosts.planning import plan_hosts, target_alone
    from gputopo.launch.spec.rules import OF_ONE_PROCESS
    from gputopo.values.run.all_reduce import parse

    if all(one.machine is None or not one.machine.gpus for one in hosts):
        raise HardwareError(
            "there is no GPU to plan for on any of the hosts",
            "plan for other machines with --from A.json B.json --fleet; gputopo run trains on CPU devices",
        )

    def own(request: "Request", *, cpu: bool) -> "Target":
        return target_alone(hosts[0], request, cpu=cpu)

    found = plan_hosts(hosts, request, own, saved=saved_network(hosts, request), earlier=earlier)
    asked = request.all_reduce
    if asked is not None and found.target.others and parse(asked).name in OF_ONE_PROCESS:
        raise UsageError(
            f"--all-reduce {asked} is within one process, and each host of a training has its own",
            "use --all-reduce hierarchical, or fewer GPUs than one host has: --num-gpus N",
        )
    for line in (*found.says, *found.target.plan.warnings):
        note(line)
    return found.target
