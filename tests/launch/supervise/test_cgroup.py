"""The CPUs of this process, the quota of its cgroup, and what a child takes of them."""

import os
import subprocess
import sys
from pathlib import Path

from gputopo import probes
from gputopo.launch.spec import HostPlace
from gputopo.launch.supervise import oom_kills, usable_cpus
from gputopo.values.index_ranges import index_ranges


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_process_own_group_counts_in_cgroup_2(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/user.slice/job\n",
        "sys/fs/cgroup/user.slice/job/memory.events": "low 0\nhigh 0\nmax 12\noom 4\noom_kill 3\n",
        "sys/fs/cgroup/memory.events": "oom_kill 99\n",
        "proc/vmstat": "oom_kill 100\n",
    }
    assert oom_kills(tree(tmp_path, files)) == 3


def test_a_container_that_sees_its_group_at_the_top_is_read_there(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/kubepods/pod1/abc\n",
        "sys/fs/cgroup/memory.events": "oom 1\noom_kill 1\n",
    }
    assert oom_kills(tree(tmp_path, files)) == 1


def test_cgroup_1_counts_in_its_memory_controller(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/job\n",
        "sys/fs/cgroup/memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
    }
    assert oom_kills(tree(tmp_path, files)) == 2


def test_without_groups_the_machine_counts(tmp_path: Path) -> None:
    assert oom_kills(tree(tmp_path, {"proc/self/cgroup": "nonsense\n\n::\n"})) is None
    assert oom_kills(tree(tmp_path, {"proc/vmstat": "nr_free_pages 7\noom_kill 8\n"})) == 8


def test_the_smallest_quota_on_the_path_of_groups_counts(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/slurm/job/step\n",
        "sys/fs/cgroup/slurm/job/step/cpu.max": "max 100000\n",
        "sys/fs/cgroup/slurm/job/cpu.max": "250000 100000\n",
        "sys/fs/cgroup/slurm/cpu.max": "800000 100000\n",
    }
    assert usable_cpus(tree(tmp_path, files)).quota == 2.5


def test_cgroup_1_has_its_quota_in_two_files(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/cpu,cpuacct"
    files = {
        "proc/self/cgroup": "7:pids:/x\n5:cpu,cpuacct:/docker/1\n",
        f"{folder}/cpu.cfs_quota_us": "150000\n",  # the container's own group, at the top of its mount
        f"{folder}/cpu.cfs_period_us": "100000\n",
    }
    assert usable_cpus(tree(tmp_path, files)).quota == 1.5
    assert usable_cpus(tree(tmp_path, {f"{folder}/cpu.cfs_quota_us": "-1\n"})).quota is None


def tethered(place: HostPlace) -> list[str]:
    """Return the CPUs of a child at this place, and its memory policy where the kernel shows it."""
    shows = (
        "import os, pathlib\n"
        "print(sorted(os.sched_getaffinity(0)))\n"
        "maps = pathlib.Path('/proc/self/numa_maps')\n"
        "print(maps.read_text().split()[1] if maps.exists() else '?')"
    )
    done = subprocess.run(
        probes.tethered([sys.executable, "-I", "-c", shows], 15),
        env={**os.environ, **place.environment({})},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.splitlines()


def test_a_child_takes_the_cpus_and_memory_that_it_may_use_and_no_others() -> None:
    ours = sorted(os.sched_getaffinity(0))
    far = max(ours) + 1
    listed = index_ranges([ours[0], far, far + 1])
    cpus, with_node = tethered(HostPlace(cpus=listed, memory_node=0))
    all_cpus, without = tethered(HostPlace(cpus=str(far)))
    assert (cpus, all_cpus) == (str([ours[0]]), str(ours))
    if with_node.startswith("prefer"):  # this kernel shows the policy
        assert (with_node.removeprefix("prefer").lstrip("=:"), without) == ("0", "default")
