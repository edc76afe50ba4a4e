from pathlib import Path

from gputopo.launch.supervise.process.oom import oom_kills


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
    assert oom_kills(tree(tmp_path, {"proc/vmstat": "nr_free_pages 7\noom_kill 8\n"})) == 8


def test_where_nothing_answers_the_count_is_not_known(tmp_path: Path) -> None:
    assert oom_kills(tmp_path) is None
    assert oom_kills(tree(tmp_path, {"proc/self/cgroup": "nonsense\n\n::\n"})) is None
