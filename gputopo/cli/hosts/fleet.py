"""`gputopo inspect` and `plan` for several hosts: asked now, or by their recordings and captures."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import gputopo
from gputopo.cli.hosts.asking import ask
from gputopo.cli.source import machine_from
from gputopo.launch.hosts.allocation import PORT, HostOptions
from gputopo.launch.hosts.hostlists import HostAddress
from gputopo.launch.hosts.messages import Joining
from gputopo.report import note
from gputopo.values.errors import ExitCode, GputopoError, HardwareError, InputError, UsageError

if TYPE_CHECKING:
    from gputopo.launch import Target
    from gputopo.planner import Request, SavedNetwork
    from gputopo.values.machine import Machine
    from gputopo.values.run.plan import Plan

_NOT_OF_FILES = re.compile(r"[^\w .:@+()-]|^\.")  # not in names of files or shown hosts
_MAX_NAME = 200  # characters; Linux allows 255 bytes
_ENDINGS = re.compile(r"(\.(json|xml|txt|log|out|tar|tgz|gz|bz2|xz|zst))+$", re.IGNORECASE)


def fleet_of_files(sources: Sequence[str]) -> "dict[str, Machine | GputopoError]":
    """Return the machines of files, or of a folder of files. Raises InputError if none can be read."""
    return readings(_files_of(sources, "compares hosts"))


def _files_of(sources: Sequence[str], does: str) -> list[str]:
    """Return the files of a fleet, given or in a folder. Raises UsageError for fewer than two."""
    files = list(sources)
    if len(files) == 1 and Path(files[0]).is_dir():
        files = sorted(str(one) for one in Path(files[0]).iterdir() if one.is_file())
    if len(files) < 2:
        raise UsageError(
            f"--fleet {does} and needs files of at least two hosts",
            "give --from A.json B.json ..., or --from FOLDER: what gputopo inspect --record writes on "
            "each host; or list the hosts to ask through ssh: --hosts LIST, or use srun: srun gputopo "
            "inspect --fleet",
        )
    return files


def record(found: "Mapping[str, Machine | GputopoError]", folder: Path) -> None:
    """Write the machine of each host to a file named after the host. Raises InputError."""
    from gputopo.topology import without_identities
    from gputopo.values import schema

    schema.make_folder(folder)
    for name, one in found.items():
        if not isinstance(one, GputopoError):
            file = _NOT_OF_FILES.sub("_", name)[:_MAX_NAME]
            schema.write(folder / f"{file}.json", without_identities(one))


def recorded(folder: Path) -> "dict[str, Machine]":
    """Return the machines of a folder, by host. Raises InputError."""
    files = sorted(str(one) for one in folder.glob("*.json"))
    if not files:
        raise InputError(f"--baseline {folder} has no recordings", "create them: --fleet --record FOLDER")
    return {name: one for name, one in readings(files).items() if not isinstance(one, GputopoError)}


def fleet_of_hosts(hosts: Sequence[HostAddress], options: HostOptions) -> "dict[str, Machine | GputopoError]":
    """Ask all hosts for their machines. Raises GputopoError."""
    found = ask(hosts, options, "inspect")
    names = [
        one.name if isinstance(one, Joining) else str(host) for host, one in zip(hosts, found, strict=True)
    ]
    return _named(names, [_machine_of(one) for one in found])


def _machine_of(answer: "Joining | GputopoError") -> "Machine | GputopoError":
    if isinstance(answer, GputopoError):
        return answer
    return answer.machine or HardwareError(f"{answer.name} answered without a machine", "ask it again")


def host_names(sources: Sequence[str]) -> list[str]:
    """Return a name for each file: its own without endings, or with its folders if several are the same."""
    names = ["stdin" if source == "-" else _ENDINGS.sub("", PurePath(source).name) for source in sources]
    return [
        name if names.count(name) == 1 else _ENDINGS.sub("", str(PurePath(source)))
        for source, name in zip(sources, names, strict=True)
    ]


def readings(sources: Sequence[str]) -> "dict[str, Machine | GputopoError]":
    """Return the machine of each file, or why it cannot be read, by host name.

    The name is the recorded one, else the name of the file. Raises InputError if no file can be read.
    """
    from gputopo.topology import with_p2p_reasons

    readings: list[Machine | GputopoError] = []
    for source in sources:
        try:
            readings.append(with_p2p_reasons(machine_from([source])))
        except GputopoError as error:
            readings.append(error)
    failed = [one for one in readings if isinstance(one, GputopoError)]
    if len(failed) == len(readings):
        raise InputError(f"none of {len(failed)} files can be read: {failed[0].what}", failed[0].hint)
    given = [None if isinstance(one, GputopoError) else one.host.name for one in readings]
    names = [
        recorded if recorded is not None and given.count(recorded) == 1 else name
        for recorded, name in zip(given, host_names(sources), strict=True)
    ]
    return _named(names, readings)


def _named(
    names: Sequence[str], readings: "Sequence[Machine | GputopoError]"
) -> "dict[str, Machine | GputopoError]":
    """Return the readings by host name; hosts with the same name are numbered."""
    found: dict[str, Machine | GputopoError] = {}
    for name, reading in zip(names, readings, strict=True):
        label, number = name, 1
        while label in found:
            number += 1
            label = f"{name} ({number})"
        found[label] = reading
    return found


def plan_of_hosts(
    hosts: Sequence[HostAddress], options: HostOptions, request: "Request", show: "Callable[[Plan], None]"
) -> int:
    """Ask all hosts, plan for the hosts that answer, show the plan, and return the exit code.

    Raises GputopoError.
    """
    found = ask(hosts, options, "plan", "" if request.no_history else "pairs")
    there = [one for one in found if isinstance(one, Joining)]
    show(planned(there, request).plan)
    if len(there) < len(found):
        note(f"planned for {len(there)} of {len(found)} hosts: the others did not answer")
        return ExitCode.HARDWARE
    return ExitCode.OK


def plan_of_files(sources: Sequence[str], request: "Request") -> "Plan":
    """Return the plan for the hosts of several files. Raises GputopoError, InputError for an unreadable file.

    One file may be the output of nccl-tests on these hosts.
    """
    from gputopo.launch.hosts.saved_network import network_of_file
    from gputopo.values.ends import HOSTS

    files = _files_of(sources, "plans for several hosts")
    hosts: list[Joining] = []
    saved: SavedNetwork | None = None
    for name, found in readings(files).items():
        if isinstance(found, GputopoError):
            raise InputError(f"{name} cannot be read: {found.what}", found.hint)
        if found.bandwidth is not None and any(one.source == HOSTS for one in found.bandwidth.samples):
            saved = network_of_file(found.bandwidth, name)
            continue
        rank = len(hosts)
        hosts.append(
            Joining(rank=rank, name=name, version=gputopo.__version__, address=name, port=PORT, machine=found)
        )
    return planned(hosts, request, saved=saved).plan


def planned(hosts: "Sequence[Joining]", request: "Request", saved: "SavedNetwork | None" = None) -> "Target":
    """Plan for hosts from their answers without claiming GPUs, and print the notes on it.

    `saved`: a measurement between them; None: the last one that was saved here.
    """
    from gputopo.launch.hosts.planning import plan_hosts, target_alone
    from gputopo.launch.hosts.saved_network import saved_network
    from gputopo.launch.spec.rules import OF_ONE_PROCESS
    from gputopo.values.run.all_reduce import parse

    if all(one.machine is None or not one.machine.gpus for one in hosts):
        raise HardwareError(
            "there is no GPU to plan for on any of the hosts",
            "plan for other machines with --from A.json B.json --fleet; gputopo run trains on CPU devices",
        )

    def own(request: "Request", *, cpu: bool) -> "Target":
        return target_alone(hosts[0], request, cpu=cpu)

    found = plan_hosts(hosts, request, own, saved=saved or saved_network(hosts, request))
    asked = request.all_reduce
    if asked is not None and found.target.others and parse(asked).name in OF_ONE_PROCESS:
        raise UsageError(
            f"--all-reduce {asked} works within one process, but each host has its own",
            "use --all-reduce hierarchical, or fewer GPUs than one host has: --num-gpus N",
        )
    for line in (*found.says, *found.target.plan.warnings):
        note(line)
    return found.target
