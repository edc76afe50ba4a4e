"""Threads bound to a NUMA node, and where their memory lies."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gputopo.probes import NumaMemory, at_once, bound_to
from tests.kit.sysfs import write_files

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no CPU affinity here")


def test_the_thread_is_bound_and_set_free_again() -> None:
    before = os.sched_getaffinity(0)
    one = min(before)
    with bound_to([one, 100_000]) as bound:
        assert bound
        assert os.sched_getaffinity(0) == {one}
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("cpus", [None, (), (100_000,)])
def test_nothing_is_changed_where_there_is_nothing_to_bind_to(cpus: tuple[int, ...] | None) -> None:
    before = os.sched_getaffinity(0)
    with bound_to(cpus) as bound:
        assert not bound
        assert os.sched_getaffinity(0) == before


def test_where_the_kernel_is_not_to_be_asked_its_maps_are_read(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        {
            "proc/self/numa_maps": "7f0000000000 default file=/usr/lib/libc.so mapped=9 N0=9\n"
            "7f1000000000 bind:1 anon=5000 dirty=5000 active=0 N0=40 N1=4960 kernelpagesize_kB=4\n"
            "7f2000000000 default stack:1 anon=3 N0=3\n"
        },
    )
    memory = NumaMemory(tmp_path)
    assert memory.nodes_by_maps(0x7F1000080000) == {0: 40, 1: 4960}
    assert memory.nodes_by_maps(0x1000) == {}
    assert NumaMemory(tmp_path / "none").nodes_by_maps(0x1000) == {}


def test_a_node_with_too_little_memory_is_not_bound_to(tmp_path: Path) -> None:
    text = "Node 0 MemTotal: 9999999 kB\nNode 0 MemFree: 90000 kB\nNode 0 Inactive(file): 5000 kB\n"
    write_files(tmp_path, {"sys/devices/system/node/node0/meminfo": text})
    memory = NumaMemory(tmp_path)
    assert not memory.has_memory(0)
    assert memory.has_memory(1)  # unknown


def test_tasks_give_what_they_gave_in_order() -> None:
    assert at_once([lambda: 3, lambda: 1, lambda: 2]) == [3, 1, 2]
    assert at_once([]) == []


def test_the_first_error_in_order_is_raised_when_all_have_ended() -> None:
    ended: list[int] = []

    def fails(number: int) -> Callable[[], None]:
        def task() -> None:
            ended.append(number)
            raise ValueError(number)

        return task

    with pytest.raises(ValueError, match="1"):
        at_once([lambda: ended.append(0), fails(1), fails(2)])
    assert sorted(ended) == [0, 1, 2]


def test_an_interruption_is_raised_when_no_thread_runs_any_more() -> None:
    going, go_on = threading.Event(), threading.Event()
    begun, ended = list[int](), list[int]()
    main = threading.main_thread().ident
    assert main is not None

    def work() -> None:
        begun.append(1)
        going.set()
        go_on.wait(10)
        ended.append(1)

    def press() -> None:
        going.wait(10)
        signal.pthread_kill(main, signal.SIGINT)
        go_on.set()

    threading.Thread(target=press).start()
    with pytest.raises(KeyboardInterrupt):
        at_once([work, work, work])
    assert begun
    assert ended == begun
