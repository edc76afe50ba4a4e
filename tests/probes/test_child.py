import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from gputopo.probes import CallLimits, Channel, DriverChild

Work = Callable[[Channel], None]
Poll = Callable[[select.poll], tuple[bool, float]]
# Of what returns: never reached, however busy the machine is.
PATIENT = CallLimits(start_s=60.0, call_s=60.0, nvml_s=60.0, quiet_s=60.0, end_s=60.0, reap_s=60.0)
HANGS_S = {"start_s": 0.6, "call_s": 0.3, "nvml_s": 0.2}


def patiently(lines: select.poll) -> tuple[bool, float]:
    """Wait for lines; no time passes, however busy the machine is."""
    return bool(lines.poll(10)), 0.0


def hurriedly(lines: select.poll) -> tuple[bool, float]:
    """Wait for lines; a tenth of a second passes in a few milliseconds. For what never returns."""
    return bool(lines.poll(3)), 0.1


def gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


@contextmanager
def running(
    work: Work, limits: CallLimits | None = PATIENT, poll: Poll = patiently
) -> Iterator[tuple[DriverChild, int]]:
    with DriverChild(work, limits, poll) as one:
        pid = one.pid
        assert pid is not None
        yield one, pid
    assert gone(pid)


def answered(work: Work) -> list[bytes]:
    """Return the whole answer of a child that asks NVML."""
    with running(work, None) as (one, _):
        parts = one.answer()
        assert one.stop is None
        return parts


def stopped(work: Work, **limits_s: float) -> tuple[list[bytes], str]:
    with running(work, PATIENT._replace(**limits_s), hurriedly) as (one, _):
        found = [line for line in one.lines() if line]
        assert one.stop is not None
        return found, one.stop.text


def test_each_request_has_its_own_answer_in_parts() -> None:
    def work(channel: Channel) -> None:
        channel.put({"name": "a\nb"})
        channel.put([1])
        channel.done()
        number = 0
        while channel.wait():
            number += 1
            channel.put(number)
            channel.done()

    with running(work, None) as (one, _):
        seen = [one.answer()]
        for _ in range(3):
            one.request()
            seen.append(one.answer())
    assert seen == [[b'{"name":"a\\nb"}', b"[1]"], [b"1"], [b"2"], [b"3"]]


def test_lines_come_as_they_are_written_and_outlive_the_child() -> None:
    def work(channel: Channel) -> None:
        channel.put({"a": "b\nc"})
        channel.put("x" * 2_000_000)
        os.kill(os.getpid(), signal.SIGKILL)

    found, stop = stopped(work)
    assert found == [b'{"a":"b\\nc"}', b'"' + b"x" * 2_000_000 + b'"']
    assert stop == "the measuring process ended with SIGKILL"


@pytest.mark.parametrize(
    ("library", "function", "limit_s"),
    [
        ("cuda", "cuMemAlloc", 0.3),
        ("nvml", "nvmlDeviceGetName", 0.2),
        ("nvml", "nvmlDeviceGetHandleByIndex", 0.6),
    ],
)
def test_a_call_that_hangs_is_named_by_its_own_limit_and_costs_nothing_before_it(
    library: str, function: str, limit_s: float
) -> None:
    def work(channel: Channel) -> None:
        channel.put(1)
        getattr(channel, library).begin(function, "3")
        time.sleep(60)

    assert stopped(work, **HANGS_S) == ([b"1"], f"{function} of GPU 3 did not return within {limit_s:g} s")


def test_a_crash_is_reported_with_the_last_call() -> None:
    def work(channel: Channel) -> None:
        for about in ("", "0", "0", "1", "1", "1"):
            channel.nvml.begin("nvmlDeviceGetName", about)
        os.abort()

    with running(work) as (one, _):
        assert list(filter(None, one.lines())) == []
        assert one.stop is not None
        assert (one.stop.kind, one.stop.gpus) == ("crashed", (1,))
        assert one.stop.text == "nvmlDeviceGetName of GPU 1 ended the process with SIGABRT"


def test_calls_that_all_return_may_not_take_for_ever() -> None:
    def work(channel: Channel) -> None:
        while True:
            channel.nvml.begin("nvmlDeviceGetName", "0")
            channel.put("still")

    def poll(lines: select.poll) -> tuple[bool, float]:
        has_lines = bool(lines.poll(10))
        return has_lines, 0.1 if has_lines else 0.0

    with running(work, None, poll) as (one, _):
        assert one.answer(0.5)
        assert one.stop is not None
        assert one.stop.text.endswith("the driver did not give all answers within 0.5 s")


def test_a_child_that_makes_no_call_and_writes_nothing_is_given_up() -> None:
    stop = "the measuring process made no progress for 0.2 s"
    assert stopped(lambda channel: time.sleep(60), quiet_s=0.2) == ([], stop)


def test_what_a_driver_prints_is_dropped(capfd: pytest.CaptureFixture[str]) -> None:
    def work(channel: Channel) -> None:
        os.write(1, b"garbage\n")
        os.system("echo garbage; echo garbage >&2")
        channel.done()

    assert answered(work) == []
    assert capfd.readouterr() == ("", "")


def test_an_exception_in_the_child_keeps_its_traceback() -> None:
    def work(channel: Channel) -> None:
        raise ZeroDivisionError("ours")

    with pytest.raises(RuntimeError, match="ZeroDivisionError: ours"):
        answered(work)


def test_a_garbage_count_does_not_fill_the_memory() -> None:
    def work(channel: Channel) -> None:
        try:
            bytearray(2**33)
        except MemoryError:
            channel.put("refused")
        channel.done()

    assert answered(work) == [b'"refused"']


def test_the_child_holds_no_file_of_its_parent() -> None:
    def work(channel: Channel) -> None:
        places = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
        channel.put(sorted(os.readlink(one).partition(":")[0] for one in places if os.path.lexists(one)))
        channel.done()

    assert answered(work) == [b'["/dev/null","/dev/null","/dev/null","pipe","pipe"]']


def test_signals_to_the_group_are_for_the_parent() -> None:
    def work(channel: Channel) -> None:
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), signum)
        channel.put(1)
        channel.done()

    assert answered(work) == [b"1"]


def test_an_interrupt_ends_the_work_and_no_line_is_halved() -> None:
    def work(channel: Channel) -> None:
        try:
            while True:
                channel.put("y" * 50_000)
        except KeyboardInterrupt:
            channel.put("interrupted")

    with running(work) as (one, _):
        whole: list[bytes] = []
        for line in filter(None, one.lines()):  # an empty line is a pause
            whole.append(line)
            if len(whole) == 3:
                one.interrupt()
    assert whole[-1] == b'"interrupted"'
    assert set(whole[:-1]) == {b'"' + b"y" * 50_000 + b'"'}


def test_a_child_that_cannot_be_killed_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "waitpid", lambda pid, flags: (0, 0))
    with DriverChild(lambda channel: time.sleep(60), PATIENT._replace(end_s=0.01, reap_s=0.01)) as one:
        pid = one.pid
        one.finish()
        assert one.abandoned == pid
        assert list(one.lines()) == []
    monkeypatch.undo()
    assert pid is not None
    os.waitpid(pid, 0)


_HANGS = """
import os, time
from gputopo.probes import DriverChild

def work(channel):
    channel.nvml.begin("nvmlInit")
    time.sleep(60)

with DriverChild(work) as child:
    print(child.pid, flush=True)
    child.answer()
"""


def test_the_child_ends_with_its_parent_at_once() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _HANGS], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert not gone(pid)
        process.kill()
        process.wait(timeout=60)
        until_s = time.monotonic() + 60
        while not gone(pid) and time.monotonic() < until_s:
            time.sleep(0.01)
        assert gone(pid)
