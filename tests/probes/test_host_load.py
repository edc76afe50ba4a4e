import os
from pathlib import Path

import pytest

from gputopo.probes import HostReader
from gputopo.values.run.events import HostLoad
from tests.kit.sysfs import write_files

MIB = 1024 * 1024


def files(second: int) -> dict[str, str]:
    """What /proc shows after so many seconds: four CPUs, this run uses one, others a half, steal 1/4."""
    run, other, steal = 100 * second, 50 * second, 25 * second
    return {
        "proc/stat": f"cpu  {run + other} 0 0 7 9 0 0 {steal} 0 0\ncpu0 {run} 0 0 7 0 0 0 0 0 0\n"
        f"cpu1 0 {other} 0 0 9 0 0 0 0 0\ncpu2 0 0 0 0 0 0 0 {steal} 0 0\ncpu3 0 0 0 1 0 0 0 0 0 0\nintr 5\n",
        "proc/7/stat": f"7 (python) R 1 7 7 0 -1 0 0 0 0 0 {run} 0 0 0 20\n",
        "proc/loadavg": "0.1 0.1 0.1 4/300 77\n",
        "proc/meminfo": "MemTotal: 1000 kB\nMemFree: 5 kB\nMemAvailable: 250 kB\n",
        "proc/vmstat": f"pswpin 0\npswpout {256 * second}\n",
        "proc/diskstats": f"8 0 sda 1 0 {2048 * second} 1 1 0 {4096 * second} 1 0 0 0\n"
        f"8 1 sda1 1 0 {2048 * second} 1 1 0 {4096 * second} 1 0 0 0\n7 0 loop0 1 0 99999 1 1 0 99 1 0 0 0\n",
        "sys/block/sda/size": "1",
        "sys/block/loop0/size": "1",
        "proc/net/dev": "a | b\n lo: 9999 0 0 0 0 0 0 0 9999 0\n"
        f" eth0:{3 * MIB * second} 0 0 0 0 0 0 0 {MIB} 0\n",
    }


def reader(tmp_path: Path, seconds: list[float]) -> HostReader:
    write_files(tmp_path, files(0))
    return HostReader(7, tmp_path, now=lambda: 1700000000.0, clock=lambda: seconds[-1])


def test_rates_are_of_the_time_since_the_reading_before(tmp_path: Path) -> None:
    seconds = [100.0]
    host = reader(tmp_path, seconds)
    write_files(tmp_path, files(2))
    seconds.append(102.0)
    host.note()
    assert host.read() == HostLoad(
        time_s=1700000000.0,
        seconds=2.0,
        cores=4,
        run_cpu_share=0.25,
        other_cpu_share=0.1875,
        run_queue=3.0,
        memory_available_share=0.25,
        swap_in_bytes_per_s=0,
        swap_out_bytes_per_s=256 * os.sysconf("SC_PAGE_SIZE"),
        disk_read_bytes_per_s=MIB,
        disk_write_bytes_per_s=2 * MIB,
        network_in_bytes_per_s=3 * MIB,
        network_out_bytes_per_s=0,
    )


def test_a_counter_that_goes_back_gives_no_rate_for_that_time(tmp_path: Path) -> None:
    seconds = [100.0]
    write_files(tmp_path, files(2))
    host = HostReader(7, tmp_path, clock=lambda: seconds[-1])
    write_files(tmp_path, files(1))
    seconds.append(101.0)
    load = host.read()
    assert (load.network_in_bytes_per_s, load.disk_read_bytes_per_s, load.run_cpu_share) == (None, None, None)
    assert load.memory_available_share == 0.25
    write_files(tmp_path, files(2))
    seconds.append(102.0)
    assert host.read().network_in_bytes_per_s == 3 * MIB


def test_a_cgroup_with_a_limit_has_less_memory_than_the_host(tmp_path: Path) -> None:
    group = {"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/memory.max": "1000\n"}
    write_files(tmp_path, {**files(0), **group, "sys/fs/cgroup/job/memory.current": "900\n"})
    assert HostReader(7, tmp_path).read().memory_available_share == 0.1


def test_an_empty_root_gives_nothing(tmp_path: Path) -> None:
    load = HostReader(7, tmp_path, now=lambda: 5.0).read()
    assert load == HostLoad(time_s=5.0, seconds=load.seconds)


def test_this_machine_is_read_and_its_shares_are_shares() -> None:
    host = HostReader()
    host.note()
    load = host.read()
    assert load.cores
    assert load.run_queue is not None
    assert 0 < (load.memory_available_share or 0) <= 1


def stat(pid: int, parent: int, *ticks: int) -> dict[str, str]:
    return {
        f"proc/{pid}/stat": f"{pid} (a (b) c) S {parent} 1 1 0 -1 0 0 0 0 0 {' '.join(map(str, ticks))} 20\n"
    }


CHILDREN = {  # as kernels list them that do
    "proc/10/task/10/children": "11 ",
    "proc/11/task/11/children": "",
    "proc/11/task/19/children": "12",
}


def processes(*ticks: int) -> dict[str, str]:
    """What /proc shows of five processes: 10 to 12 descend from one another."""
    return {
        "proc/stat": "cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\n",
        **stat(1, 0, 900, 900, 900, 900),
        **stat(10, 1, 1, 2, 3, 4),
        **stat(11, 10, *ticks),
        **stat(12, 11, 100, 0, 0, 200),
        **stat(20, 1, 5000, *ticks[1:]),
    }


@pytest.mark.parametrize("listed", [{}, CHILDREN])
@pytest.mark.parametrize(("pid", "share"), [(10, 0.5), (12, 0.0), (99, None)])
def test_cpu_time_is_that_of_a_process_and_all_below_it_and_of_those_that_ended(
    listed: dict[str, str], pid: int, share: float | None, tmp_path: Path
) -> None:
    seconds = [100.0]
    write_files(tmp_path, processes(10, 20, 0, 0) | listed)
    host = HostReader(pid, tmp_path, clock=lambda: seconds[-1])
    write_files(tmp_path, processes(10 + 20, 20 + 10, 15, 5))
    seconds.append(101.0)
    assert host.read().run_cpu_share == share
