"""Programs that train, measured in turns on one machine: one runs while the others are stopped (SIGSTOP).

Other load on the machine then affects all programs equally, within seconds.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple, Self

import psutil

_POLL_S = 0.002
_OUTPUT, _ERRORS = "output", "errors"


class Program(NamedTuple):
    """A program that trains until it is killed.

    `arguments`: of Python; `{folder}` is replaced by this program's folder. `progress`: the file in this
    folder, by default its output, in which each line with `mark` is a step. `images`: per step.
    """

    arguments: Sequence[str]
    mark: bytes
    images: int
    progress: str = _OUTPUT
    cwd: Path = Path()
    environment: Mapping[str, str] = {}


class Slice(NamedTuple):
    """Speed of a program in a slice: images per second, and images per second of processor time."""

    rate: float
    by_cpu: float


class Running:
    """A program that runs or is stopped; it is killed at the end of the context."""

    def __init__(self, program: Program, folder: Path) -> None:
        folder.mkdir()
        self._program = program
        self._errors = folder / _ERRORS
        self._progress = folder / program.progress
        self._seen = 0  # bytes read
        self.steps = 0
        with open(folder / _OUTPUT, "wb") as output, open(self._errors, "wb") as errors:
            self._process = psutil.Popen(
                [sys.executable, *(one.format(folder=folder) for one in program.arguments)],
                cwd=program.cwd,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **program.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._family():
            with suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGKILL)
        self._process.wait()

    def go_on_until(self, steps: int) -> float:
        """Wait until `steps` steps are done and return the time, in seconds."""
        while self._look() < steps:
            if self._process.poll() is not None:
                sys.exit(f"{' '.join(self._program.arguments)} ended:\n{self._errors.read_text()[-2000:]}")
            time.sleep(_POLL_S)
        return time.perf_counter()

    def slice(self, min_s: float) -> Slice:
        """Run for at least `min_s` seconds, then stop again.

        The step in which the program was stopped is not counted.
        """
        self._send(signal.SIGCONT)
        began = now = self.go_on_until(self.steps + 1)
        first, used_s = self.steps, self._cpu_s()
        while now - began < min_s:
            now = self.go_on_until(self.steps + 1)
        used_s = self._cpu_s() - used_s
        self.stop()
        images = (self.steps - first) * self._program.images
        return Slice(images / (now - began), images / used_s)

    def stop(self) -> None:
        """Stop (SIGSTOP) all its processes."""
        self._send(signal.SIGSTOP)

    def peak_mib(self) -> float:
        """Return the peak resident memory of its largest process so far."""
        return max(_high_water_kib(one.pid) for one in self._family()) / 1024

    def _look(self) -> int:
        """Return the number of steps done."""
        with suppress(FileNotFoundError), open(self._progress, "rb") as progress:
            progress.seek(self._seen)
            whole = progress.read().rpartition(b"\n")[0]
            if whole:
                self._seen += len(whole) + 1
                self.steps += sum(self._program.mark in line for line in whole.split(b"\n"))
        return self.steps

    def _cpu_s(self) -> float:
        return sum(sum(one.cpu_times()[:2]) for one in self._family())

    def _family(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):  # it ended
            return [self._process, *self._process.children(recursive=True)]
        return []

    def _send(self, number: signal.Signals) -> None:
        for one in self._family():
            one.send_signal(number)


def rates(
    programs: Mapping[str, Program], folder: Path, *, rounds: int, slice_s: float, behind: float
) -> tuple[list[dict[str, Slice]], dict[str, float]]:
    """Start the programs and run each for `slice_s` seconds per round, in alternating order.

    Returns the slices by round and program, and the peaks in MiB. Except for the first program, a program
    that is slower than `behind` times the fastest in the first two rounds is not measured further.
    """
    with ExitStack() as stack:
        running = {}
        for name, program in programs.items():
            running[name] = stack.enter_context(Running(program, folder / name))
            running[name].go_on_until(1)
            running[name].stop()
        found: list[dict[str, Slice]] = []
        measured = list(running)
        for number in range(rounds):
            order = measured if number % 2 == 0 else measured[::-1]
            found.append({name: running[name].slice(slice_s) for name in order})
            if number == 1:
                best = {name: max(one[name].rate for one in found) for name in measured}
                first = next(iter(programs))
                measured = [
                    one for one in measured if one == first or best[one] >= behind * max(best.values())
                ]
        return found, {name: one.peak_mib() for name, one in running.items()}


def _high_water_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)
