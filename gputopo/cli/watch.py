"""`gputopo inspect --watch`: the GPUs' clocks, power, temperature and links over time, and their findings."""

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from gputopo import findings
from gputopo.cli.printing import can_redraw, emit, redrawn_lines, show
from gputopo.report import to_stderr
from gputopo.values import schema
from gputopo.values.errors import ExitCode, HardwareError
from gputopo.values.finding import Finding, Severity
from gputopo.values.run.events import MachineSample

if TYPE_CHECKING:
    from gputopo.values.machine import Machine

SAMPLE_SCHEMA = "gputopo.moment/1"


class Watched(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.watched/1"):
    """The last line of a watch in JSON: the findings. `xid_reason`: why Xid errors were not watched."""

    findings: tuple[Finding, ...]
    xid_reason: str | None = None


def watch(
    machine: "Machine", every: float, duration: float | None, shape: str, fail_on: Severity | None
) -> int:
    """Sample the GPUs until Ctrl-C or the end of `duration`, and print findings. Times in s.

    A driver that hangs or crashes ends the watch too. Raises HardwareError if there is nothing to watch.
    """
    from gputopo.launch import with_ports_now
    from gputopo.values.history import History

    _require_gpus(machine)
    from gputopo.probes import NotReadError, open_watch

    if duration and duration < every:
        to_stderr(
            f"gputopo: only one sample: the next one is due after {every:g} s, and --duration is "
            f"{duration:g} s\n"
        )
    history = History(models={gpu.index: gpu.name for gpu in machine.gpus})
    began_s = time.monotonic()
    try:
        with open_watch([gpu.index for gpu in machine.gpus]) as watcher:
            showing = _shown(machine, lambda: watcher.xid_reason, shape, every)
            with showing as show_sample, contextlib.suppress(KeyboardInterrupt):
                for _ in _ticks(every, duration):
                    sample = watcher.observe()
                    history.add(sample)
                    show_sample(sample)
                    if watcher.stop is not None:
                        break
            reason, stop = watcher.xid_reason, watcher.stop
    except NotReadError as error:
        raise HardwareError(f"NVML cannot be used: {error.reason}", "nvidia-smi shows more") from error
    later, minutes = with_ports_now(machine), (time.monotonic() - began_s) / 60
    problems = findings.find_after_watch(machine, history, later, minutes)
    if stop is not None:
        problems = (findings.stopped(stop.kind, stop.text, stop.gpus), *problems)
    _print_findings(problems, shape, reason)
    if stop is not None:
        return ExitCode.HARDWARE
    return ExitCode.FINDINGS if findings.fails(problems, fail_on) else ExitCode.OK


def _ticks(every_s: float, long_s: float | None) -> Iterator[None]:
    """Yield every `every_s` seconds: at once first, and for the last time after at most `long_s`.

    Missed times are skipped, not made up for.
    """
    start = following = time.monotonic()
    while True:
        yield
        following = max(following + every_s, time.monotonic())
        if long_s is not None and following - start > long_s:
            return
        time.sleep(max(following - time.monotonic(), 0.0))


def _sample_line(sample: MachineSample) -> str:
    """Return a sample as one line of JSON with its schema first."""
    document = {"schema": SAMPLE_SCHEMA} | msgspec.to_builtins(sample)
    return msgspec.json.encode(document).decode() + "\n"


@contextlib.contextmanager
def _shown(
    machine: "Machine", xid_reason: Callable[[], str | None], shape: str, every_s: float
) -> Iterator[Callable[[MachineSample], None]]:
    """Yield the function that shows a sample: as JSON, CSV, redrawn on the terminal, or as lines.

    `xid_reason`: returns why Xid errors are not watched, or None.
    """
    if shape == "json":
        yield lambda sample: emit(_sample_line(sample))
        return
    from gputopo.report import WatchDisplay

    display = WatchDisplay(machine, every_s)
    if shape == "csv":
        emit(display.csv_header)
        yield lambda sample: emit(display.csv(sample))
    elif not can_redraw():
        yield lambda sample: emit(display.lines(sample))
    else:
        with redrawn_lines() as draw_lines:

            def draw(sample: MachineSample) -> None:
                width = max(shutil.get_terminal_size().columns - 1, 20)
                draw_lines(display.screen(sample, xid_reason(), width))

            yield draw


def _require_gpus(machine: "Machine") -> None:
    broken = findings.driver_broken(machine)
    if broken is not None:
        raise HardwareError(broken.says, broken.remedy or "nvidia-smi shows more")
    if not machine.gpus:
        raise HardwareError(
            "there is nothing to watch: this machine has no NVIDIA GPU",
            "run it on the machine that has the GPUs; --from shows a capture, once",
        )


def _print_findings(problems: tuple[Finding, ...], shape: str, xid_reason: str | None) -> None:
    if shape == "json":
        emit(schema.encode(Watched(findings=problems, xid_reason=xid_reason)).decode() + "\n")
        return
    from gputopo.report import document_text, watched_document

    document = watched_document(problems, xid_reason)
    if shape == "csv":
        to_stderr(document_text(document, 80))
        return
    emit("\n")
    show(document)
