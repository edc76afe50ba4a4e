"""Results of the history: by machine, model and time, safe beside other writers and later versions."""

import multiprocessing
import sqlite3
from pathlib import Path

import pytest

from gputopo.runs import history
from gputopo.runs.history import save_result, stored_results
from gputopo.values.errors import InputError
from gputopo.values.machine import Gpu, Machine
from gputopo.values.run.result import Result, Throughput
from tests.invented_bandwidths import bandwidth_of, machine_with

MACHINE = machine_with(2)


def result_of(speed: float, model: str = "alexnet") -> Result:
    """The result of a run at this speed."""
    throughput = Throughput(mean=speed, uncertainty=0.0, jitter=0.0, median=speed, total=speed)
    return Result(status="complete", exit_code=0, spec={"model": model}, backend="gpu", throughput=throughput)


def speeds(path: Path, **asked: object) -> list[float]:
    """The speeds of the stored results that were asked for."""
    found = stored_results(path, **asked)  # type: ignore[arg-type]
    return [one.result.throughput.median for one in found if one.result.throughput is not None]


def test_results_come_back_whole_and_oldest_first(tmp_path: Path) -> None:
    path = tmp_path / "new" / history.FILE
    assert save_result(path, MACHINE, result_of(2.0), folder="/b", finished_at=20.0)
    assert save_result(path, MACHINE, result_of(1.0), folder="/a", finished_at=10.0)
    first, second = stored_results(path)
    assert (first.result, first.folder, first.finished_at) == (result_of(1.0), "/a", 10.0)
    assert second.fingerprint == history.fingerprint(MACHINE)


def test_they_are_found_by_machine_model_and_time(tmp_path: Path) -> None:
    path = tmp_path / history.FILE
    save_result(path, MACHINE, result_of(1.0), folder="/a", finished_at=10.0)
    save_result(path, MACHINE, result_of(2.0, "vgg16"), folder="/b", finished_at=20.0)
    save_result(path, machine_with(3), result_of(3.0), folder="/c", finished_at=30.0)
    assert speeds(path, machine=history.fingerprint(MACHINE)) == [1.0, 2.0]
    assert speeds(path, model="alexnet") == [1.0, 3.0]
    assert speeds(path, since=20.0) == [2.0, 3.0]
    assert speeds(path, model="alexnet", since=11.0) == [3.0]


def test_a_machine_that_cannot_be_identified_has_no_history(tmp_path: Path) -> None:
    unknown = Machine(source="t", gpus=(Gpu(index=0),))
    assert not save_result(tmp_path / history.FILE, unknown, result_of(1.0), folder="/a", finished_at=1.0)
    assert list(tmp_path.iterdir()) == []


def test_without_a_file_or_with_one_of_an_earlier_version_there_are_none(tmp_path: Path) -> None:
    path = tmp_path / history.FILE
    assert speeds(path) == []
    history.save(path, MACHINE, bandwidth_of(2), saved_at=1.0)
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE result")
        connection.execute("PRAGMA user_version = 1")
    assert speeds(path) == []
    save_result(path, MACHINE, result_of(1.0), folder="/a", finished_at=1.0)
    assert speeds(path) == [1.0]
    assert history.latest(path, MACHINE) is not None


def test_a_file_of_a_later_version_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / history.FILE
    save_result(path, MACHINE, result_of(1.0), folder="/a", finished_at=1.0)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    before = path.read_bytes()
    with pytest.raises(InputError, match="later version"):
        save_result(path, MACHINE, result_of(2.0), folder="/b", finished_at=2.0)
    assert path.read_bytes() == before


def _add_many(path: Path, number: int) -> None:
    for place in range(10):
        save_result(path, MACHINE, result_of(1.0), folder=f"/{number}/{place}", finished_at=1.0)


def test_parallel_runs_lose_no_result(tmp_path: Path) -> None:
    path = tmp_path / history.FILE
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_add_many, args=(path, number)) for number in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert {one.folder for one in stored_results(path)} == {f"/{a}/{b}" for a in range(3) for b in range(10)}
