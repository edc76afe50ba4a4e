from pathlib import Path

from gputopo.launch.supervise.past_runs import MOST, latest_results
from gputopo.values import schema
from gputopo.values.result import Result

PLAIN = Result(status="complete", exit_code=0, spec={}, backend="cpu")


def keep(home: Path, name: str) -> Path:
    (home / name).mkdir(parents=True)
    schema.write(home / name / "result.json", PLAIN)
    return home / name


def test_the_latest_come_first_and_this_run_is_left_out(tmp_path: Path) -> None:
    first, second = keep(tmp_path, "20260101-000000-a-1"), keep(tmp_path, "20260102-000000-a-1")
    own = keep(tmp_path, "20260103-000000-a-1")
    assert [where for where, _ in latest_results(tmp_path, but=own)] == [str(second), str(first)]


def test_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    kept = keep(tmp_path, "1")
    (tmp_path / "2").mkdir()
    (keep(tmp_path, "3") / "result.json").write_text("{ cut off")
    (tmp_path / "file").touch()
    assert list(latest_results(tmp_path)) == [(str(kept), PLAIN)]
    assert list(latest_results(tmp_path / "nowhere")) == []


def test_only_so_many_are_looked_at(tmp_path: Path) -> None:
    for number in range(MOST + 5):
        (tmp_path / f"{number:03d}").mkdir()
    keep(tmp_path, "000-old")
    assert list(latest_results(tmp_path)) == []
