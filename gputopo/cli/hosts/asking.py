"""Asks several hosts by ssh or srun what each knows about itself. No host needs another one."""

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

import gputopo
from gputopo.cli.parsing import typed_words
from gputopo.launch.hosts.addresses import is_this_host
from gputopo.launch.hosts.allocation import HostOptions, find
from gputopo.launch.hosts.hostlists import HostAddress, address
from gputopo.launch.hosts.messages import Joining
from gputopo.launch.remote_ask import ask_host, ask_step, at_once
from gputopo.launch.remote_process import host_command, passed_on, step_command
from gputopo.report import note, to_stderr
from gputopo.values.errors import GputopoError, UsageError
from gputopo.values.option import parameters_of

# The driver sets these itself: the hosts by starting them, the rank by giving it to each.
_OF_THE_DRIVER = ("hosts", "hostfile", "num_hosts", "remote_python")


def hosts_to_start(options: HostOptions) -> tuple[HostAddress, ...]:
    """Return the hosts that this process must start; () if it is one of them, or the only host.

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
) -> int:
    """Start a command on each host as it was typed, and return its exit code. Raises GputopoError.

    `program`: the words after --.
    """
    from gputopo.launch import remote_start

    environment = dict(os.environ)
    if sys.stdout.isatty():  # the stdout of rank 0 is a pipe
        environment["COLUMNS"] = str(shutil.get_terminal_size().columns)
    words = typed_words(parameters_of(command), typed, _OF_THE_DRIVER)
    words += ["--", *program] if program else []
    agents = remote_start.Agents(
        words=("-P", "-m", "gputopo", command.__name__, *words),
        remote_python=options.remote_python or sys.executable,
        folder=os.getcwd(),
        environment=environment,
    )
    return remote_start.drive(remote_start.commands(hosts, agents), agents, show=to_stderr, note=note)


_PEERS = 5  # hosts whose routes give a host its own address on their network; not measured
_MAX_NAME = 64  # characters of a host's name (HOST_NAME_MAX of linux/limits)
_ANSWER = ("-P", "-m", "gputopo.cli.hosts.answer")


def hosts_to_ask(options: HostOptions) -> tuple[HostAddress, ...] | None:
    """Return the hosts that this process asks.

    () if rank 0 of a launcher asks them; None if the options have no hosts. Raises UsageError.
    """
    if named := hosts_to_start(options):
        return named
    found = find(options, os.environ)
    if found is None:
        return None
    if found.rank:
        note(f"{found.source}: rank 0 asks this host")
        return ()
    if any(host.name is None for host in found.hosts):
        raise UsageError(
            f"{found.source} does not list the other hosts, which are asked through ssh",
            "list them: --hosts LIST; or compare files: gputopo inspect --record on each, then --from FILES",
        )
    return found.hosts


def ask(
    hosts: Sequence[HostAddress], options: HostOptions, what: str, *more: str
) -> list[Joining | GputopoError]:
    """Return each host's answer, or why it has none. Raises GputopoError if no host answers.

    `more`: see `answer`.
    """
    python = options.remote_python or sys.executable
    names = [str(host.name) for host in hosts]
    words = (*_ANSWER, what, ",".join(names[:_PEERS]), *more)
    variables, within_s = passed_on(os.environ), options.join_timeout
    in_step: Mapping[str, Joining | GputopoError] = {}
    if "SLURM_STEP_ID" in os.environ:
        in_step = ask_step(step_command(names, words, python=python), names, variables, within_s)

    def ask_one(rank: int) -> Joining | GputopoError:
        name = names[rank]
        start = host_command(rank, name, words, python=python, environ=os.environ)
        try:
            found = in_step.get(name) or ask_host(start, variables, within_s, python)
            if isinstance(found, GputopoError):
                raise found
            _require_same_version(found, name)
        except GputopoError as error:
            return error
        is_named = len(found.name) <= _MAX_NAME and address(found.name) is not None
        own = found.name if hosts[rank].is_ip and is_named else name
        note(f"{own} has answered")
        return msgspec.structs.replace(found, rank=rank, name=own)

    answers = at_once(ask_one, range(len(hosts)))
    errors = [one for one in answers if isinstance(one, GputopoError)]
    is_none_there = len(errors) == len(hosts)
    for error in errors[is_none_there:]:
        note(error.what)
    if is_none_there:
        raise errors[0]
    return answers


def _require_same_version(found: Joining, host: str) -> None:
    """Raise UsageError for an answer of another version, and the host's own error if it sent one."""
    if found.version != gputopo.__version__:
        raise UsageError(
            f"gputopo is {found.version} on {host}, {gputopo.__version__} here",
            "install the same version on all hosts",
        )
    if found.unable is not None:
        raise msgspec.structs.replace(found.unable, cause=f"{host}: {found.unable.cause}").error
