"""Three hosts on this machine, each a network namespace with its own name, with Slurm, sshd and Open MPI.

`head` has the switch between them, and is where a user types. Needs root and Debian's packages
(`.ci/starters` installs them); nothing outside of the namespaces, /etc/netns and a folder is touched.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

HEAD, NODES = "head", ("n1", "n2", "n3")
_ADDRESSES = {HEAD: "10.77.0.1", **{name: f"10.77.0.{10 + n}" for n, name in enumerate(NODES, 1)}}
PROGRAMS = ("ip", "munged", "slurmctld", "slurmd", "srun", "sshd", "ssh", "mpirun", "shellcheck")
_NODE = "CPUs=80 RealMemory=512000 Gres=gpu:8"  # as of the bundled DGX-1
_ETC = Path("/etc/netns")  # what lies there for a namespace is seen in /etc by its processes (ip-netns(8))
_SLURM = """\
ClusterName=gputopo
SlurmctldHost=head
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
SwitchType=switch/none
ReturnToService=2
SlurmdParameters=config_overrides
StateSaveLocation={folder}/slurmctld
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
{nodes}
PartitionName=all Nodes=n[1-3] Default=YES MaxTime=INFINITE State=UP
"""
_GPUS = 8  # files of no device: batch scripts are checked against them, and none is used
_CGROUP = "CgroupPlugin=cgroup/v1\n"  # none is used; what is mounted is not looked for
_SSHD = """\
HostKey /etc/ssh/host_key
AuthorizedKeysFile /etc/ssh/key.pub
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
PidFile none
"""
_SSH = """\
Host *
  IdentityFile /etc/ssh/key
  UserKnownHostsFile /etc/ssh/known_hosts
"""


def lacking() -> str | None:
    """Return why there can be no cluster here, None if there can."""
    if os.geteuid() != 0:
        return "needs root"
    if absent := [one for one in PROGRAMS if _program(one) is None]:
        return f"not installed: {', '.join(absent)}"
    made = subprocess.run(["unshare", "--net", "--uts", "true"], capture_output=True, text=True)
    return f"no network namespaces: {made.stderr.strip()}" if made.returncode else None


class Cluster:
    """The hosts while they run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started: list[Started] = []

    def command(self, host: str, words: Sequence[str]) -> list[str]:
        """Return the command that runs words on a host."""
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', host]
        return ["ip", "netns", "exec", _namespace(host), *named, *words]

    def start(self, words: Sequence[str], environ: Mapping[str, str], host: str = HEAD) -> "Started":
        """Start a program as a user of the host does."""
        started = Started(self.command(host, words), environ)
        self._started.append(started)
        return started

    def close(self) -> None:
        """End what was started on its hosts and still runs."""
        while self._started:
            self._started.pop().close()

    def unplug(self, host: str) -> None:
        """Pull the host's network cable: nobody is told."""
        _ip("-n", _namespace(HEAD), "link", "set", host, "down")

    def plug(self, host: str) -> None:
        """Plug it in again."""
        _ip("-n", _namespace(HEAD), "link", "set", host, "up")

    def processes(self, host: str, *words: str) -> list[psutil.Process]:
        """Return the processes of a host whose command lines have these words, in this order."""
        found = []
        for pid in _ip("netns", "pids", _namespace(host)).split():
            with suppress(psutil.NoSuchProcess):  # a zombie is one, too
                one = psutil.Process(int(pid))
                line = one.cmdline()
                if any(tuple(line[n : n + len(words)]) == words for n in range(len(line))):
                    found.append(one)
        return found

    def left(self) -> list[psutil.Process]:
        """Return what of gputopo still runs on any host; all of it is `python -m`."""
        return [one for host in (HEAD, *NODES) for one in self.processes(host, "-m")]

    def slurm(self, *words: str) -> str:
        """Return what a command of Slurm prints."""
        done = subprocess.run(self.command(HEAD, words), capture_output=True, text=True, check=True)
        return done.stdout


class Started:
    """A program on a host, in a session of its own."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            command,
            env={**os.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.seen = ""

    def until(self, words: str) -> None:
        """Read its stderr until a line has these words."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.seen += line
            if words in line:
                return
        raise AssertionError(f"{words!r} was not written: {self.seen}")

    def ended(self, within_s: float = 60) -> tuple[int, str, str]:
        """Return exit code, stdout and stderr; kill it where it does not end in time."""
        try:
            out, err = self.process.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            out, err = self.process.communicate()
            raise AssertionError(f"it has not ended within {within_s} s: {self.seen}{err}") from None
        return self.process.returncode, out, self.seen + err

    def close(self) -> None:
        """Kill it where it has not ended."""
        with self.process:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Make the hosts, start their daemons, and end both."""
    made = Cluster(folder)
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        _wire()
        _configure(folder)
        Path("/run/sshd").mkdir(exist_ok=True)
        with (folder / "daemons.log").open("wb") as log:

            def start(host: str, *words: str) -> None:
                path = _program(words[0])
                assert path is not None
                command = made.command(host, [path, *words[1:]])
                daemons.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

            start(HEAD, "munged", "--foreground", "--force", *_munge(folder))
            _until((folder / "munge" / "socket").exists, "munged")
            start(HEAD, "slurmctld", "-D")
            for node in NODES:
                start(node, "slurmd", "-D")
                start(node, "sshd", "-D")
        _until(
            lambda: made.slurm("sinfo", "-h", "-t", "idle", "-o", "%D").split() == ["3"], "three idle nodes"
        )
        yield made
    finally:
        for one in reversed(daemons):
            one.terminate()
        for one in daemons:
            with suppress(subprocess.TimeoutExpired):
                one.wait(10)
        _unwire()


def _wire() -> None:
    _unwire()  # of a run that was killed
    for host in (HEAD, *NODES):
        _ip("netns", "add", _namespace(host))
        _ip("-n", _namespace(host), "link", "set", "lo", "up")
    head = _namespace(HEAD)
    _ip("-n", head, "link", "add", "switch", "type", "bridge")
    for node in NODES:
        _ip(
            "-n", head, "link", "add", node, "type", "veth", "peer", "name", "eth0", "netns", _namespace(node)
        )
        _ip("-n", head, "link", "set", node, "master", "switch", "up")
    for host, address in _ADDRESSES.items():
        card = "switch" if host == HEAD else "eth0"
        _ip("-n", _namespace(host), "addr", "add", f"{address}/24", "dev", card)
        _ip("-n", _namespace(host), "link", "set", card, "up")


def _unwire() -> None:
    there = {line.split()[0] for line in _ip("netns", "list").splitlines() if line}
    for host in (HEAD, *NODES):
        if _namespace(host) in there:
            for pid in _ip("netns", "pids", _namespace(host)).split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            _ip("netns", "del", _namespace(host))
        shutil.rmtree(_ETC / _namespace(host), ignore_errors=True)


def _configure(folder: Path) -> None:
    """Write what the hosts have in /etc."""
    (folder / "munge").mkdir(mode=0o755)
    (folder / "slurmctld").mkdir()
    (folder / "munge" / "key").write_bytes(os.urandom(128))
    (folder / "munge" / "key").chmod(0o600)
    for name in ("key", "host_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    host_key = (folder / "host_key.pub").read_text()
    known = "".join(f"{name},{address} {host_key}" for name, address in _ADDRESSES.items())
    hosts = "".join(f"{address} {name}\n" for name, address in _ADDRESSES.items())
    nodes = "\n".join(f"NodeName={node} NodeAddr={_ADDRESSES[node]} {_NODE}" for node in NODES)
    for number in range(_GPUS):
        (folder / f"gpu{number}").touch()
    for host in _ADDRESSES:
        etc = _ETC / _namespace(host)
        (etc / "ssh").mkdir(parents=True)
        (etc / "slurm").mkdir()
        (etc / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
        (etc / "hostname").write_text(f"{host}\n")
        (etc / "slurm" / "slurm.conf").write_text(_SLURM.format(folder=folder, nodes=nodes))
        (etc / "slurm" / "cgroup.conf").write_text(_CGROUP)
        (etc / "slurm" / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-{_GPUS - 1}]\n")
        (etc / "ssh" / "sshd_config").write_text(_SSHD)
        (etc / "ssh" / "ssh_config").write_text(_SSH)
        (etc / "ssh" / "known_hosts").write_text(known)
        for name in ("key", "key.pub", "host_key"):
            shutil.copy(folder / name, etc / "ssh" / name)


def _munge(folder: Path) -> list[str]:
    paths = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    return [f"--{option}={folder / 'munge' / name}" for option, name in paths.items()]


def _namespace(host: str) -> str:
    return f"gputopo-{host}"


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin")


def _until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.05)
