"""Asks several hosts what each knows of itself, by ssh or srun: no host needs another one."""

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

import gputopo
from gputopo.cli.printing import note, to_stderr
from gputopo.launch.hosts.addresses import is_this_host
from gputopo.launch.hosts.allocation import HostOptions, find
from gputopo.launch.hosts.hostlists import HostAddress
from gputopo.launch.hosts.messages import Joining
from gputopo.launch.remote_ask import HostProcess, answers, questions
from gputopo.launch.remote_start import HostCommand
from gputopo.values import schema
from gputopo.values.errors import GputopoError, HardwareError, UsageError
from gputopo.values.option import parameters_of, typed_words

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


_PEERS = 4  # hosts by one of which another one finds its address on their network; not measured
_ANSWER = ("-P", "-m", "gputopo.cli.hosts.answer")
_decoder = msgspec.json.Decoder(Joining)


def hosts_to_ask(options: HostOptions) -> tuple[HostAddress, ...] | None:
    """Return the hosts that this process asks; () where rank 0 of a starter does so; None: none are named.

    Raises UsageError.
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
            f"{found.source} does not name the other hosts, which are asked by ssh",
            "name them: --hosts LIST; or compare files: gputopo inspect --record on each, then --from FILES",
        )
    return found.hosts


def to_ask(
    hosts: Sequence[HostAddress], options: HostOptions, what: str, *more: str
) -> tuple[list[HostCommand], str]:
    """Return the commands that ask each host, and the Python of the others. `more`: see `answer`."""
    python = options.remote_python or sys.executable
    names = [str(host.name) for host in hosts]

    def words(rank: int) -> tuple[str, ...]:
        others = [name for number, name in enumerate(names) if number != rank]
        return (*_ANSWER, what, ",".join(others[:_PEERS]), *more)

    return questions(hosts, words, (sys.executable, python), os.environ, is_this_host), python


def ask(
    hosts: Sequence[HostAddress], options: HostOptions, what: str, *more: str
) -> list[Joining | GputopoError]:
    """Return what each host answers, or why it does not. Raises GputopoError where none answers."""
    starts, python = to_ask(hosts, options, what, *more)

    def ask_one(start: HostCommand) -> Joining:
        with HostProcess(start) as process:
            found = read(process, hosts, options.join_timeout, python)
        note(f"{found.name} has answered")
        return found

    found = list(answers(starts, ask_one).values())
    errors = [one for one in found if isinstance(one, GputopoError)]
    if len(errors) == len(hosts):
        raise errors[0]
    return found


def read(process: HostProcess, hosts: Sequence[HostAddress], within_s: float, python: str) -> Joining:
    """Return what a host answers first. Raises GputopoError where it does not, after its line is printed."""
    try:
        found = _read(process, within_s, python)
    except GputopoError as error:
        note(error.what)
        raise
    rank = process.start.rank
    name = found.name if hosts[rank].is_ip else str(hosts[rank].name)
    return msgspec.structs.replace(found, rank=rank, name=name)


def _read(process: HostProcess, within_s: float, python: str) -> Joining:
    line, host = process.line(within_s, python), process.start.host
    try:
        found = _decoder.decode(line)
    except schema.UNREADABLE as error:
        what = f"{host} answered something else: {error}"
        raise HardwareError(what, "see what its shell prints") from error
    if found.version != gputopo.__version__:
        raise UsageError(
            f"gputopo is {found.version} on {host}, {gputopo.__version__} here",
            "install the same version on all hosts",
        )
    if found.unable is not None:
        raise msgspec.structs.replace(found.unable, cause=f"{host}: {found.unable.cause}").error
    return found
