"""Starts a command on several hosts as it was typed here."""

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gputopo.cli.printing import note, to_stderr
from gputopo.launch.hosts.addresses import is_this_host
from gputopo.launch.hosts.allocation import HostOptions
from gputopo.launch.hosts.hostlists import HostAddress
from gputopo.values.option import Declared, parameters_of

# The driver says these itself: by the hosts that it starts, and by the rank that it gives to each.
_OF_THE_DRIVER = ("hosts", "hostfile", "num_hosts", "remote_python")


def hosts_to_start(options: HostOptions) -> tuple[HostAddress, ...]:
    """Return the hosts that this process is to start; () where it is one of them, or alone.

    Raises UsageError.
    """
    if options == HostOptions():
        return ()
    from gputopo.launch import remote_start

    found = remote_start.to_start(options, os.environ)
    return () if len(found) == 1 and is_this_host(str(found[0].name)) else found


def start_hosts(
    command: Callable[..., int],
    hosts: Sequence[HostAddress],
    options: HostOptions,
    typed: Mapping[str, Any],
    *,
    program: Sequence[str] = (),
    may_lose: bool = False,
) -> int:
    """Start a command on each host as it was typed, and return its exit code. Raises GputopoError.

    `program`: what follows --. `may_lose`: see `remote_start.RankEnds`.
    """
    from gputopo.launch import remote_start

    environment = dict(os.environ)
    if sys.stdout.isatty():  # that of rank 0 is a pipe
        environment["COLUMNS"] = str(shutil.get_terminal_size().columns)
    words = typed_words(parameters_of(command), typed, _OF_THE_DRIVER)
    words += ["--", *program] if program else []
    python = options.remote_python or sys.executable
    agents = remote_start.Agents(
        words=("-P", "-m", "gputopo", command.__name__, *words),
        python=sys.executable,
        remote_python=python,
        folder=os.getcwd(),
        environment=environment,
    )
    starts = remote_start.commands(hosts, agents, is_this_host)
    return remote_start.drive(starts, python=python, show=to_stderr, note=note, may_lose=may_lose)


def typed_words(
    declared: Sequence[Declared], typed: Mapping[str, Any], without: Sequence[str] = ()
) -> list[str]:
    """Return the options as they were typed, but for those `without`, which are names."""
    words: list[str] = []
    for one in declared:
        name = one.name.rstrip("_")
        if name not in typed or name in without:
            continue
        value = typed[name]
        for text in value if one.option.repeated else (value,):
            words += [one.option.flag] if one.is_flag else [one.option.flag, str(text)]
    return words
