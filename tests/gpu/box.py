"""The machine that the checks look at: commands with time limits, and the one folder that is kept.

Nothing is written to the folder before serials and UUIDs in it are masked.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BUDGET_S = 470.0  # the checks are to end within eight minutes: machines with GPUs are lent by the minute
RESERVE_S = 5.0  # of the budget, for the last check, which reads what is kept
# A cold driver takes more than 25 s with 8 GPUs (Azure/AgentBaker#2829), a quick session 48 s.
LIMIT_S = 150.0
PLAIN_S = 45.0  # after which no other copy of `tests.gpu.plain` begins

UUID = re.compile(r"\b(GPU|MIG)-[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}")
SERIAL = re.compile(
    r"(\"\w*serial\w*\": \"|<\w*serial\w*>|serial number\s*:\s*)(?!masked|N/A)[^\"<\s]+", re.IGNORECASE
)
_IDENTITY = re.compile(r"<(?:uuid|pdi|\w*serial\w*)>([^<]{6,})</")
MASK = "masked"


def is_installed(module: str) -> bool:
    """Return whether this Python has a module."""
    try:
        return find_spec(module) is not None
    except ImportError:  # of the package that it is in
        return False


class NotTriedError(Exception):
    """A check could not be tried; the reason."""


@dataclass
class Box:
    """The machine. `gputopo`, `plain`: the beginnings of their command lines.

    `limit`: `--gpus` of `gputopo bandwidth`. `quick_words`: what a quick session is asked to do.
    """

    folder: Path
    gputopo: Sequence[str] = (sys.executable, "-m", "gputopo")
    plain: Sequence[str] = (sys.executable, "-m", "tests.gpu.plain")
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    nvbandwidth: str | None = None
    limit: Sequence[str] = ()
    quick_words: Sequence[str] = ("--effort", "quick")
    is_double: bool = False
    budget_s: float = BUDGET_S

    def __post_init__(self) -> None:
        path = os.pathsep.join(filter(None, (str(ROOT), self.environment.get("PYTHONPATH"))))
        self.environment = {**self.environment, "PYTHONPATH": path}  # for what is started elsewhere, too
        self._begun_s = time.monotonic()
        self._failed = 0
        self.timings: list[str] = []
        self.identities: set[str] = set()
        self.recorded_s: list[float] = []  # what each recording took

    @property
    def spent_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._begun_s

    @property
    def left_s(self) -> float:
        """Seconds that are left for checks."""
        return self.budget_s - RESERVE_S - self.spent_s

    def run(self, *command: str, limit_s: float = LIMIT_S) -> str:
        """Return what a command prints.

        Raises RuntimeError with its last line if it fails or lasts longer than its limit; NotTriedError if it
        does not end within the time that is left.
        """
        allowed_s = min(limit_s, self.left_s)
        if allowed_s <= 0:
            raise NotTriedError("no time left")
        begun_s = time.monotonic()
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=self.environment,
                start_new_session=True,
            )
            try:
                code = process.wait(allowed_s)
            except subprocess.TimeoutExpired:
                if allowed_s < limit_s:
                    raise NotTriedError("no time left") from None
                raise RuntimeError(f"no end within {limit_s:g} s: {shlex.join(command[-4:])}") from None
            finally:
                seconds = time.monotonic() - begun_s
                self.timings.append(f"{seconds:8.2f} s  {shlex.join(command)}")
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # whatever it left behind, too
                with contextlib.suppress(subprocess.TimeoutExpired):  # in a call of the driver
                    process.wait(1)
            out.seek(0)
            err.seek(0)
            text, errors = out.read(), err.read()
        if code != 0 and not (code == 1 and text):  # 1: findings, which are printed
            self._failed += 1
            self.write(f"failed-{self._failed}.txt", f"{shlex.join(command)}\n{text}\n{errors}")
            raise RuntimeError(f"exit code {code}: {errors.strip()[-200:]}")
        return text

    def write(self, name: str, text: str) -> Path:
        """Keep a text, masked."""
        path = self.folder / name
        path.write_text(self.masked(text))
        return path

    def masked(self, text: str) -> str:
        """Return a text without serials and UUIDs."""
        for identity in self.identities:
            text = re.sub(rf"\b{re.escape(identity)}\b", MASK, text)
        return SERIAL.sub(rf"\1{MASK}", UUID.sub(rf"\1-{MASK}", text))

    def unmasked(self) -> list[str]:
        """Return the names of the files that have a serial or a UUID."""
        kept = [path for path in sorted(self.folder.rglob("*")) if path.is_file()]
        texts = {path.name: path.read_text(errors="replace") for path in kept}
        return [name for name, text in texts.items() if self.masked(text) != text]

    def keep(self, name: str, *command: str, limit_s: float = LIMIT_S) -> Any:
        """Return the JSON that a command prints, kept as a file."""
        text = self.run(*command, limit_s=limit_s)
        self.write(f"{name}.json", text)
        return json.loads(text)

    @cached_property
    def recording(self) -> str:
        """The machine, before anything is measured: the first contact with its driver."""
        return str(self.record("machine"))

    def record(self, name: str) -> Path:
        """Record the machine."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "machine.json"
            begun_s = time.monotonic()
            self.run(*self.gputopo, "inspect", "--record", str(path))
            self.recorded_s.append(time.monotonic() - begun_s)
            return self.write(f"{name}.json", path.read_text())

    @cached_property
    def smi(self) -> str:
        """What `nvidia-smi -q -x` prints. It is not kept; the identities in it are masked from now on."""
        program = shutil.which("nvidia-smi", path=self.environment.get("PATH"))
        if program is None:
            raise NotTriedError("nvidia-smi is not on PATH")
        text = self.run(program, "-q", "-x")
        self.identities |= {found.strip() for found in _IDENTITY.findall(text)} - {"N/A"}
        return text

    @cached_property
    def quick(self) -> Any:
        """A quick session of all GPUs."""
        return self.keep("quick", *self.gputopo, "bandwidth", *self.quick_words, "--json", *self.limit)

    @cached_property
    def full_session(self) -> Any:
        """A full session, of no more than two GPUs: of eight it takes many minutes."""
        gpus = [gpu["index"] for gpu in json.loads(Path(self.recording).read_text())["gpus"]]
        limit = self.limit or ("--gpus", ",".join(map(str, gpus[:2])))
        return self.keep("full", *self.gputopo, "bandwidth", "--effort", "full", "--json", *limit)

    @cached_property
    def plain_rates(self) -> Any:
        """Copies by nvbandwidth's method."""
        return self.keep("plain-rates", *self.plain, self.recording, "rates", f"{PLAIN_S:g}")

    def alone(self, task: str) -> Any:
        """Return what a task of `tests.gpu.plain` finds."""
        return self.keep(f"plain-{task}", *self.plain, self.recording, task)

    def require(self, module: str, uses_a_gpu: str) -> None:
        """Raise NotTriedError if Python has no such module, or an expression with it is not true."""
        if not is_installed(module):
            raise NotTriedError(f"{module} is not installed")
        try:
            self.run(sys.executable, "-c", f"import {module}; raise SystemExit(0 if {uses_a_gpu} else 3)")
        except RuntimeError:
            raise NotTriedError(f"{module} uses no GPU here") from None
