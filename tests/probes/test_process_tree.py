import os
import subprocess
import sys
from pathlib import Path

import psutil

from gputopo.probes.process_tree import ProcessTree, is_descendant
from tests.kit.sysfs import write_files


def stat(pid: int, parent: int, *ticks: int) -> dict[str, str]:
    return {
        f"proc/{pid}/stat": f"{pid} (a (b) c) S {parent} 1 1 0 -1 0 0 0 0 0 {' '.join(map(str, ticks))} 20\n"
    }


def box(tmp_path: Path) -> Path:
    write_files(
        tmp_path,
        {
            **stat(1, 0, 900, 900, 900, 900),
            **stat(10, 1, 1, 2, 3, 4),
            **stat(11, 10, 10, 20, 0, 0),
            **stat(12, 11, 100, 0, 0, 200),
            **stat(20, 1, 5000, 0, 0, 0),
        },
    )
    return tmp_path


def test_cpu_time_is_that_of_a_process_and_all_below_it_and_of_those_that_ended(tmp_path: Path) -> None:
    assert ProcessTree(10, box(tmp_path)).cpu_ticks() == 1 + 2 + 3 + 4 + 30 + 300


def test_where_the_kernel_lists_children_these_are_read(tmp_path: Path) -> None:
    children = {
        "proc/10/task/10/children": "11 ",
        "proc/11/task/11/children": "",
        "proc/11/task/19/children": "12",
    }
    write_files(box(tmp_path), children)
    assert ProcessTree(10, tmp_path).cpu_ticks() == 1 + 2 + 3 + 4 + 30 + 300


def test_a_process_that_has_ended_counts_nothing_and_no_proc_is_unknown(tmp_path: Path) -> None:
    assert ProcessTree(99, box(tmp_path)).cpu_ticks() is None
    (tmp_path / "empty/proc").mkdir(parents=True)
    assert ProcessTree(10, tmp_path / "empty").cpu_ticks() is None


def test_a_child_descends_from_this_process_and_this_process_not_from_it() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert is_descendant(child.pid, os.getpid())
        assert not is_descendant(os.getpid(), child.pid)
        assert not is_descendant(999_999_999, os.getpid())
        child.communicate(b"\n")


def test_this_process_agrees_with_psutil() -> None:
    times = psutil.Process().cpu_times()
    ticks = ProcessTree(os.getpid()).cpu_ticks()
    assert ticks is not None
    assert ticks / os.sysconf("SC_CLK_TCK") >= times.user + times.system - 0.05
