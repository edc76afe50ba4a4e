"""The commands by which ssh, srun or mpirun start `gputopo run` on each host of a training. Pure."""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence

import msgspec

from gputopo.launch.hosts.allocation import claim_of, is_started
from gputopo.launch.hosts.hostlists import HostAddress, fold, read_hosts
from gputopo.launch.hosts.options import HostOptions, Starter
from gputopo.values.errors import HardwareError, UsageError
from gputopo.values.option import shown

_AGENT = ("-P", "-m", "gputopo.launch.drive.agent")
# BatchMode: it never asks. ControlMaster: a connection that is shared would hold our pipes open after its
# end. A host that has died is noticed after 3 times 5 s.
_SSH = (
    *("ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ControlMaster=no"),
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3", "-o", "LogLevel=ERROR"),
)
# A host that ends, or fails, must not end the others: the driver does, after rank 0 has reported why. The
# CPUs of a rank are gputopo's choice, not one core (Slurm's and Open MPI's default for one task).
SRUN = ("srun", "--ntasks-per-node=1", "--kill-on-bad-exit=0", "--wait=0", "--no-kill", "--cpu-bind=none")
MPIRUN = ("mpirun", "--bind-to", "none")
_RANK_OF_STEP, _RANK_OF_MPI = "SLURM_NODEID", "OMPI_COMM_WORLD_RANK,PMI_RANK"
# Of the driver's environment, for hosts that do not get it from the starter. TF_CONFIG is of one host.
_PASSED_ON = re.compile(r"(?!TF_CONFIG$)(GPUTOPO|TF|NCCL|XLA|KERAS)_\w+|COLUMNS")

_SSH_FAILED, _CANNOT_RUN = 255, (126, 127)
_HINTS = (
    (r"host key|host identification", "confirm the key of the host once by hand: ssh {host} true"),
    (r"permission denied", "`ssh {host} true` must succeed without a password: ssh-copy-id {host}"),
    (r"resolve", "correct the name, or name its address in ~/.ssh/config"),
    (r"timed out|refused|no route|unreachable", "see whether the host is up, and sshd runs on it"),
    (r"", "try it by hand: ssh {host} true"),
)


class Starting(msgspec.Struct, frozen=True, kw_only=True):
    """Hosts to start a training on. `hosts`: in rank order, empty where `srun` takes those of its job."""

    starter: Starter
    size: int
    hosts: tuple[HostAddress, ...] = ()


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """A command that starts the agents of some ranks. `host`: of the one rank; None where it is several.

    `tethers_all`: its stdin goes to all of them, not to rank 0 alone.
    """

    ranks: tuple[int, ...]
    command: tuple[str, ...]
    host: str | None = None
    remote: bool = True
    tethers_all: bool = True


class Agents(msgspec.Struct, frozen=True, kw_only=True):
    """What each host is to run: `python` with `words`, on other hosts `remote_python`.

    `environment`: of the driver. `folder`: where it was started.
    """

    words: tuple[str, ...]
    python: str
    remote_python: str
    folder: str
    environment: Mapping[str, str]


def find(options: HostOptions, environ: Mapping[str, str]) -> Starting | None:
    """Return the hosts that this process is to start, None where it is one of them, or alone.

    Raises UsageError where the options contradict one another, and where a starter was asked for and there is
    nothing to start.
    """
    if options.num_hosts == 1:
        return None
    claim_of(options)
    if is_started(options, environ):
        if options.starter != "auto":
            raise UsageError(
                f"--starter {options.starter} starts gputopo on each host, and this one has a rank already",
                "leave --starter out, or start one gputopo run outside of srun and mpirun",
            )
        return None
    hosts = options.hosts or options.hostfile
    in_job = "SLURM_JOB_ID" in environ
    starter = options.starter
    if starter == "auto":
        starter = "srun" if in_job else "ssh"
        if not hosts and (options.num_hosts is None or not in_job):
            return None
    if not hosts and in_job:
        nodes = environ.get("SLURM_JOB_NODELIST", "")
        hosts = read_hosts("SLURM_JOB_NODELIST", nodes)[: options.num_hosts] if nodes else ()
    if not hosts:
        raise UsageError(f"--starter {starter} needs the hosts", "add --hosts LIST, or --hostfile FILE")
    return Starting(starter=starter, size=len(hosts), hosts=hosts)


def starts(starting: Starting, agents: Agents, is_here: Callable[[str], bool]) -> tuple[Start, ...]:
    """Return the commands that start all hosts. `is_here`: whether a name is that of this host."""
    names = [str(host.name) for host in starting.hosts]
    ranks = tuple(range(starting.size))
    listed = fold(names) if all(host.port is None for host in starting.hosts) else None
    hosts = ("--hosts", listed or ",".join(map(str, starting.hosts)))
    if starting.starter == "srun":
        step = (f"--nodes={starting.size}", f"--ntasks={starting.size}", f"--nodelist={','.join(names)}")
        command = (*SRUN, *step, *_agent(agents, _RANK_OF_STEP, "", hosts, remote=False))
        return (Start(ranks=ranks, command=command),)
    if starting.starter == "mpirun":
        where = ("-n", str(starting.size), "--host", ",".join(names))
        command = (*MPIRUN, *where, *_agent(agents, _RANK_OF_MPI, "", hosts, remote=True))
        return (Start(ranks=ranks, command=command, tethers_all=False),)
    return tuple(_by_ssh(agents, rank, name, hosts, is_here=is_here(name)) for rank, name in enumerate(names))


def _by_ssh(agents: Agents, rank: int, name: str, hosts: Sequence[str], *, is_here: bool) -> Start:
    words = (*hosts, "--node-rank", str(rank))
    agent = _agent(agents, str(rank), name, words, remote=not is_here)
    command = agent if is_here else (*_SSH, "--", name, shlex.join(agent))
    return Start(ranks=(rank,), command=command, host=name, remote=not is_here)


def _agent(agents: Agents, rank: str, name: str, words: Sequence[str], *, remote: bool) -> tuple[str, ...]:
    passed = [
        f"{variable}={text}"
        for variable, text in sorted(agents.environment.items())
        if remote and _PASSED_ON.fullmatch(variable)
    ]
    python = agents.remote_python if remote else agents.python
    own = list(agents.words)
    end = own.index("--") if "--" in own else len(own)
    return ("env", *passed, python, *_AGENT, rank, name, agents.folder, *own[:end], *words, *own[end:])


def not_started(start: Start, code: int, lines: Sequence[str], python: str) -> HardwareError:
    """Return the error of a starter that ended by `code` before gputopo ran; `lines`: what it printed."""
    program = start.command[0]
    last = next((line.strip() for line in reversed(lines) if line.strip()), f"exit code {code}")
    if start.host is None:
        return HardwareError(
            f"{program} ended with exit code {code} before gputopo started: {last}",
            f"see its messages; try `{program} hostname` on the same hosts",
        )
    host = start.host
    if code == _SSH_FAILED and start.remote:
        words = last.casefold()
        hint = next(hint for cause, hint in _HINTS if re.search(cause, words)).format(host=host)
        return HardwareError(f"ssh cannot connect to {host}: {last}", hint)
    if code in _CANNOT_RUN or "No module named" in last:
        return HardwareError(
            f"gputopo cannot be started on {host}: {last}",
            f"install it there too, the same version, for {shlex.quote(python)}; "
            "--remote-python PATH names another Python",
        )
    return HardwareError(
        f"{host} ended with exit code {code} before gputopo started: {shown(last)}",
        f"try it by hand: ssh {host} {shlex.quote(python)} -m gputopo --version",
    )


__all__ = ["MPIRUN", "SRUN", "Agents", "Start", "Starting", "find", "not_started", "starts"]
