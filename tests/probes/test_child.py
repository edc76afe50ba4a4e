import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from gputopo.probes import child
from gputopo.probes.child import Child, Desk


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, what ends is waited for."""
    monkeypatch.setattr(child, "_REAP_S", 60.0)


@pytest.fixture
def begin() -> Iterator[Callable[[Callable[[Desk], None]], Child]]:
    """Starts children, and closes them after the test."""
    begun: list[Child] = []

    def start(work: Callable[[Desk], None]) -> Child:
        begun.append(Child(work))
        return begun[-1]

    yield start
    for one in begun:
        one.close()


Begin = Callable[[Callable[[Desk], None]], Child]


def test_an_answer_comes_in_parts_with_the_calls_behind_it(begin: Begin) -> None:
    def work(desk: Desk) -> None:
        desk.call("nvmlInit", "")
        desk.call("nvmlDeviceGetName", "3")
        desk.put({"name": "a\nb"})
        desk.call("nvmlDeviceGetP2PStatus", "3-5")
        desk.put([1])
        desk.done()

    answer = begin(work).answer()
    assert answer.parts == [b'{"name":"a\\nb"}', b"[1]"]
    assert answer.calls == [("nvmlInit", ()), ("nvmlDeviceGetName", (3,)), ("nvmlDeviceGetP2PStatus", (3, 5))]
    assert answer.stop is None


def test_each_request_has_its_own_answer(begin: Begin) -> None:
    def work(desk: Desk) -> None:
        desk.put("open")
        desk.done()
        number = 0
        while desk.wait():
            number += 1
            desk.put(number)
            desk.done()

    one = begin(work)
    seen = [one.answer().parts]
    for _ in range(3):
        one.request()
        seen.append(one.answer().parts)
    assert seen == [[b'"open"'], [b"1"], [b"2"], [b"3"]]


def test_a_call_that_hangs_is_named_and_costs_nothing_before_it(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "CALL_S", 0.3)

    def work(desk: Desk) -> None:
        desk.call("nvmlDeviceGetName", "2")
        desk.put("a name")
        desk.call("nvmlDeviceGetUUID", "2")
        time.sleep(60)

    answer = begin(work).answer()
    assert answer.parts == [b'"a name"']
    assert answer.stop is not None
    assert (answer.stop.kind, answer.stop.gpus) == ("hung", (2,))
    assert answer.stop.text == "nvmlDeviceGetUUID of GPU 2 did not return within 0.3 s"


def test_a_pair_is_named_by_both_and_the_driver_by_none(begin: Begin) -> None:
    def pair(desk: Desk) -> None:
        desk.call("nvmlDeviceGetP2PStatus", "0-2")
        os._exit(3)

    def driver(desk: Desk) -> None:
        desk.call("nvmlInit", "")
        os.abort()

    stops = [begin(work).answer().stop for work in (pair, driver)]
    assert [stop.text for stop in stops if stop] == [
        "nvmlDeviceGetP2PStatus of GPUs 0 and 2 ended the process with exit code 3",
        "nvmlInit ended the process with SIGABRT",
    ]


def test_a_crash_is_named_and_costs_nothing_before_it(begin: Begin) -> None:
    def work(desk: Desk) -> None:
        desk.put(1)
        desk.call("nvmlDeviceGetName", "0")
        os.kill(os.getpid(), signal.SIGSEGV)

    answer = begin(work).answer()
    assert (answer.parts, answer.stop and answer.stop.kind) == ([b"1"], "crashed")


def test_calls_that_all_return_may_not_take_for_ever(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "WHOLE_S", 0.5)

    def work(desk: Desk) -> None:
        while True:
            desk.call("nvmlDeviceGetName", "0")
            time.sleep(0.05)

    stop = begin(work).answer().stop
    assert stop is not None
    assert stop.text.endswith("the driver did not give all answers within 0.5 s")


def test_many_calls_that_return_are_waited_for(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "CALL_S", 1.0)

    def work(desk: Desk) -> None:
        for number in range(24):
            desk.call("nvmlDeviceGetName", str(number))
            time.sleep(0.05)
        desk.done()

    answer = begin(work).answer()
    assert (answer.stop, len(answer.calls)) == (None, 24)


def test_what_happens_after_the_answer_costs_nothing(begin: Begin) -> None:
    def work(desk: Desk) -> None:
        desk.put(1)
        desk.done()
        os.abort()

    assert begin(work).answer().stop is None


def test_what_a_driver_prints_is_dropped(begin: Begin, capfd: pytest.CaptureFixture[str]) -> None:
    def work(desk: Desk) -> None:
        os.write(1, b"garbage\n")
        os.write(2, b"garbage\n")
        os.system("echo garbage; echo garbage >&2")
        desk.done()

    assert begin(work).answer().stop is None
    assert capfd.readouterr() == ("", "")


def test_a_fault_of_ours_keeps_its_traceback(begin: Begin) -> None:
    def work(desk: Desk) -> None:
        raise ZeroDivisionError("ours")

    with pytest.raises(RuntimeError, match="ZeroDivisionError: ours"):
        begin(work).answer()


def test_a_garbage_count_does_not_fill_the_memory(begin: Begin) -> None:
    def work(desk: Desk) -> None:
        try:
            bytearray(2**33)
        except MemoryError:
            desk.put("refused")
        desk.done()

    assert begin(work).answer().parts == [b'"refused"']


def test_the_child_holds_no_file_of_its_parent(begin: Begin) -> None:
    def work(desk: Desk) -> None:
        places = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
        desk.put(sorted(os.readlink(place).partition(":")[0] for place in places if os.path.lexists(place)))
        desk.done()

    (files,) = begin(work).answer().parts
    assert files == b'["/dev/null","/dev/null","/dev/null","pipe","pipe"]'


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_to_the_group_are_for_the_parent(begin: Begin, signum: signal.Signals) -> None:
    def work(desk: Desk) -> None:
        os.kill(os.getpid(), signum)
        desk.put(1)
        desk.done()

    assert begin(work).answer().parts == [b"1"]


def gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def wait_for(condition: Callable[[], bool]) -> bool:
    until_s = time.monotonic() + 60
    while not condition() and time.monotonic() < until_s:
        time.sleep(0.01)
    return condition()


_HANGS = """
import os, sys, time
from gputopo.probes.child import Child

def work(desk):
    desk.call("nvmlInit", "")
    os.kill(parent, 0)
    desk.put(os.getpid())
    time.sleep(60)

parent = os.getpid()
child = Child(work)
print(child._pid, flush=True)
try:
    child.answer()
finally:
    child.close()
"""


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_child_ends_with_its_parent_at_once(signum: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _HANGS], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert not gone(pid)
        process.send_signal(signum)
        process.wait(timeout=60)
        assert wait_for(lambda: gone(pid))
