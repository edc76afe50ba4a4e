from pathlib import Path

import pytest

from gputopo.cli.run.options import read_written_file
from gputopo.cli.run.showing import EVERY_S, MetricsFile
from gputopo.values.errors import GputopoError
from gputopo.values.run.events import RunFinished
from tests.invented_runs import step


def test_the_file_is_written_every_few_seconds_and_at_the_end(tmp_path: Path) -> None:
    file = tmp_path / "run.prom"
    written = MetricsFile(file, pytest.fail)
    seen = []
    for number, time_s in enumerate((0.0, 1.0, EVERY_S, EVERY_S + 1), 1):
        written.event(step(number, [(0.1, 0.2)], time_s=1000 + time_s))
        seen.append("gputopo_run_steps_total " + str(number) in file.read_text())
    assert seen == [True, False, True, False]
    written.event(RunFinished(time_s=1000 + EVERY_S + 1, status="complete", exit_code=0, wall_s=1.0))
    assert "gputopo_run_steps_total 4" in file.read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["run.prom"]


def test_a_file_that_cannot_be_written_is_reported_once_and_ends_no_run(tmp_path: Path) -> None:
    problems: list[str] = []
    written = MetricsFile(tmp_path / "gone" / "run.prom", problems.append)
    for number in range(1, 4):
        written.event(step(number, [(0.1, 0.2)], time_s=1000.0 * number))
    assert len(problems) == 1
    assert "run.prom" in problems[0]


@pytest.mark.parametrize("name", ["", ".", "no/such/folder/run.prom"])
def test_a_name_that_no_file_can_have_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(GputopoError, match="--prometheus"):
        read_written_file("--prometheus", name)
