"""A program on one of several hosts, started by ssh, by a Slurm step, or locally through an agent.

The agent ends the program with this process. The program's output comes through pipes; the agent's reports
(`agent.report`) are removed from stderr.
"""

import codecs
import contextlib
import json
import os
import re
import select
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self

from gputopo.launch.hosts.addresses import is_this_host
from gputopo.launch.hosts.agent import MARK, SECRET
from gputopo.values.errors import HardwareError
from gputopo.values.option import shown

_AGENT = ("-P", "-m", "gputopo.launch.hosts.agent")
# BatchMode: ssh never prompts. ControlMaster: a shared connection would keep the pipes open after its end. A
# dead host is noticed after 3 times 5 s.
SSH = (
    *("ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ControlMaster=no"),
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3", "-o", "LogLevel=ERROR"),
)
# A query that a name server has lost is sent again after 1 s, not 5 s (resolv.conf(5)).
_IMPATIENT = {"RES_OPTIONS": "timeout:1 attempts:5"}
# The step runs next to other steps, and a host that fails does not end the others.
SRUN = ("srun", "--overlap", "--kill-on-bad-exit=0", "--wait=0", "--ntasks-per-node=1")
# Variables that other hosts get, through stdin. TF_CONFIG differs for each host; the last three are
# Terraform's.
_PASSED_ON = re.compile(
    rf"(?!(?:TF_CONFIG|{SECRET})$|TF_(?:VAR|TOKEN|CLI)_)(GPUTOPO|TF|NCCL|XLA|KERAS)_\w+|COLUMNS"
)
_SSH_FAILED, _CANNOT_RUN = 255, (126, 127)
_HINTS = (
    (r"host key|host identification", "confirm the key of the host once by hand: ssh {host} true"),
    (r"permission denied", "`ssh {host} true` must succeed without a password: ssh-copy-id {host}"),
    (r"resolve", "correct the name, or set its address in ~/.ssh/config"),
    (r"timed out|refused|no route|unreachable", "see whether the host is up, and sshd runs on it"),
    (r"", "try it by hand: ssh {host} true"),
)
_CHUNK_BYTES = 64 * 1024
END_S = 1.0  # for a process whose stdin was closed, before it is killed; not measured
MAX_BYTES = 8 * 1024 * 1024  # of a program's output; the machine of a host with 16 GPUs takes less than 1 MiB


@dataclass(frozen=True, kw_only=True)
class HostCommand:
    """A command that starts the agent of a host. `remote`: by ssh or srun."""

    rank: int
    host: str
    command: tuple[str, ...]
    remote: bool = True


def host_command(
    rank: int, host: str, words: Sequence[str], *, python: str, environ: Mapping[str, str], folder: str = "."
) -> HostCommand:
    """Return the command that runs `words` on a host: a command, or options of its Python.

    `python`: of other hosts. Within a Slurm step, other hosts are reached by steps next to it.
    """
    if is_this_host(host):
        command = _agent(sys.executable, folder, words)
        return HostCommand(rank=rank, host=host, command=command, remote=False)
    command = _agent(python, folder, words)
    if "SLURM_STEP_ID" in environ:
        command = (*SRUN, "--nodes=1", "--nodelist", host, *command)
    else:
        command = (*SSH, "--", host, shlex.join(command))
    return HostCommand(rank=rank, host=host, command=command)


def step_command(hosts: Sequence[str], words: Sequence[str], *, python: str) -> HostCommand:
    """Return the command that runs Python on all hosts of a Slurm job; `--label` marks lines by task."""
    nodes = ("--label", f"--nodes={len(hosts)}", "--nodelist", ",".join(hosts))
    return HostCommand(rank=0, host=hosts[0], command=(*SRUN, *nodes, python, *words))


def _agent(python: str, folder: str, words: Sequence[str]) -> tuple[str, ...]:
    return (python, *_AGENT, folder, *([python] if words[0].startswith("-") else []), *words)


def passed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are passed on to other hosts."""
    return {name: text for name, text in sorted(environ.items()) if _PASSED_ON.fullmatch(name)}


def not_started(start: HostCommand, code: int, lines: Sequence[str], python: str) -> HardwareError:
    """Return the error of a command that ended before gputopo ran. `lines`: its output."""
    host = start.host
    last = next((line.strip() for line in reversed(lines) if line.strip()), f"exit code {code}")
    if code == _SSH_FAILED and start.remote:
        words = last.casefold()
        hint = next(hint for cause, hint in _HINTS if re.search(cause, words)).format(host=host)
        return HardwareError(f"ssh cannot connect to {host}: {last}", hint)
    if code in _CANNOT_RUN or "No module named" in last:
        return HardwareError(
            f"gputopo cannot be started on {host}: {last}",
            f"install the same version there for {shlex.quote(python)}; --remote-python PATH sets "
            "another Python",
        )
    return HardwareError(
        f"{host} ended with exit code {code} before gputopo started: {shown(last)}",
        f"try it by hand: ssh {host} {shlex.quote(python)} -m gputopo --version",
    )


class HostProcess:
    """The process of a host command, with its reports; a context manager that ends it.

    `is_over`: its stderr has ended. `ended`: the exit code of the program, None if it is not known. Processes
    that the program left behind may still have stderr open.
    """

    def __init__(
        self,
        start: HostCommand,
        variables: Mapping[str, str],
        stdout: Literal["pipe", "stderr", "ours"] = "pipe",
        end_s: float = END_S,
    ) -> None:
        """Start it. `stdout`: where its stdout goes. Raises HardwareError if there is no such program.

        `end_s`: seconds for output after the program has ended, and from the end of stdin to SIGKILL.
        """
        self.start = start
        self._end_s = end_s
        self.has_started = self.is_over = False
        self.ended: int | None = None
        self.said = ""  # the latest text on stderr
        self._rest = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._by_line = stdout != "ours"
        self.stderr, theirs = os.pipe()
        try:
            self._process = subprocess.Popen(
                start.command,
                stdin=subprocess.PIPE,
                stdout={"pipe": subprocess.PIPE, "stderr": theirs, "ours": None}[stdout],
                stderr=theirs,
                env=_IMPATIENT | os.environ if start.command[0] == SSH[0] else None,
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            os.close(self.stderr)
            raise HardwareError(
                f"cannot start {start.command[0]}: {error.strerror}",
                "install it, or start gputopo on each host with --node-rank N",
            ) from error
        finally:
            os.close(theirs)
        self.tell(json.dumps(dict(variables)).encode() + b"\n")

    @property
    def is_done(self) -> bool:
        """Whether the program or its connection has ended."""
        return self.is_over or self.ended is not None

    def tell(self, data: bytes) -> None:
        """Write data to its stdin: see `agent`. If the process has ended, the data is dropped."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(data)

    def take(self) -> list[str]:
        """Read new output on stderr; return its lines. With stdout `ours`, the last one may be incomplete."""
        data = os.read(self.stderr, _CHUNK_BYTES)
        self.is_over = not data
        *lines, rest = (self._rest + self._decoder.decode(data, final=self.is_over)).split("\n")
        texts = [self._without_report(line) for line in lines]
        is_held = not self.is_over and (self._by_line or MARK in rest)
        self._rest = rest if is_held else ""
        texts += [rest] if rest and not is_held else []
        texts = [text for text in texts if text]
        self.said = (self.said + "".join(texts))[-_CHUNK_BYTES:]
        return texts

    def _without_report(self, line: str) -> str:
        """Return a line with its newline, without a report in it; note the report."""
        text, mark, words = line.partition(MARK)
        match words.split():
            case ["gputopo", "started"]:
                self.has_started = True
            case ["gputopo", "ended", code] if code.isdecimal():
                self.ended = int(code)
        return text if mark else f"{line}\n"

    def output(
        self, within_s: float, is_whole: Callable[[bytes], bool] = lambda _: False, most: int = MAX_BYTES
    ) -> bytes:
        """Return its output until it ends or is complete, or until `within_s` seconds or `most` bytes."""
        assert self._process.stdout is not None
        output, stdout = b"", self._process.stdout.fileno()
        until_s = time.monotonic() + within_s
        watched = select.poll()
        for handle in (stdout, self.stderr):
            watched.register(handle, select.POLLIN)
        is_open = True
        while (is_open or not self.is_over) and len(output) <= most and not is_whole(output):
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                break
            for handle, _ in watched.poll(1000 * left_s):
                if handle == self.stderr:
                    self.take()
                    ended = self.is_over
                else:
                    data = os.read(stdout, _CHUNK_BYTES)
                    output += data
                    ended = not data
                    is_open = not ended
                if ended:
                    watched.unregister(handle)
            if self.ended is not None:
                until_s = min(until_s, time.monotonic() + self._end_s)
        return output

    def wait(self) -> int:
        """Wait until it ends, and return its exit code, 128 + n for signal n."""
        code = self._process.wait()
        return code if code >= 0 else 128 - code

    def release(self) -> None:
        """Close its stdin, so that the agent ends the program."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def close(self) -> None:
        """End the process, and reap it."""
        self.release()
        try:
            self._process.wait(self._end_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # it cannot be killed
                self._process.wait(self._end_s)
        os.close(self.stderr)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
