"""The machines of several hosts: read from files, or asked now."""

import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from gputopo.launch.hosts.allocation import FoundHosts
from gputopo.launch.hosts.asking import ask
from gputopo.launch.hosts.messages import Joining
from gputopo.launch.hosts.options import HostOptions
from gputopo.launch.source import machine_from
from gputopo.values.errors import GputopoError, HardwareError, InputError

if TYPE_CHECKING:
    from gputopo.values.machine import Machine

_ENDINGS = re.compile(r"(\.(json|xml|txt|log|out|tar|tgz|gz|bz2|xz|zst))+$", re.IGNORECASE)


def read_machines(sources: Sequence[str]) -> "dict[str, Machine | GputopoError]":
    """Return the machine of each file, or why it cannot be read, by host name.

    The name is the recorded one, else the name of the file without endings; with its folders if several files
    have the same name. Raises InputError if no file can be read.
    """
    from gputopo.topology import with_p2p_reasons

    readings: list[Machine | GputopoError] = []
    for source in sources:
        try:
            readings.append(with_p2p_reasons(machine_from([source])))
        except GputopoError as error:
            readings.append(error)
    failed = [reading for reading in readings if isinstance(reading, GputopoError)]
    if len(failed) == len(readings):
        raise InputError(f"none of {len(failed)} files can be read: {failed[0].what}", failed[0].hint)
    recorded = [None if isinstance(reading, GputopoError) else reading.host.name for reading in readings]
    files = ["stdin" if source == "-" else _ENDINGS.sub("", PurePath(source).name) for source in sources]
    names = []
    for source, name, file in zip(sources, recorded, files, strict=True):
        if name is None or recorded.count(name) > 1:
            name = file if files.count(file) == 1 else _ENDINGS.sub("", str(PurePath(source)))
        names.append(name)
    return _by_name(names, readings)


def ask_for_machines(hosts: FoundHosts, options: HostOptions) -> "dict[str, Machine | GputopoError]":
    """Return the machine of each host, or why it did not answer, by host name.

    Empty if rank 0 asks this host. Raises GputopoError if no host answers.
    """
    answers = ask(hosts, options, "inspect")
    names: list[str] = []
    machines: list[Machine | GputopoError] = []
    for host, answer in answers.items():
        if isinstance(answer, Joining):
            names.append(answer.name)
            absent = HardwareError(f"{answer.name} answered without a machine", "ask it again")
            machines.append(answer.machine or absent)
        else:
            names.append(str(host))
            machines.append(answer)
    return _by_name(names, machines)


def _by_name(
    names: Sequence[str], readings: "Sequence[Machine | GputopoError]"
) -> "dict[str, Machine | GputopoError]":
    """Return the readings by host name; hosts with the same name are numbered."""
    by_name: dict[str, Machine | GputopoError] = {}
    for name, reading in zip(names, readings, strict=True):
        label, number = name, 1
        while label in by_name:
            number += 1
            label = f"{name} ({number})"
        by_name[label] = reading
    return by_name
