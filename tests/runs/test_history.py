"""The history: by machine, model and time, made again from run folders, safe beside other writers."""

import contextlib
import os
import shutil
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gputopo.runs import BoxHistory, Past, Saved
from gputopo.topology import fingerprint
from gputopo.values import schema
from gputopo.values.bandwidth import Bandwidth, Samples, TransferRate
from gputopo.values.ends import End
from gputopo.values.errors import InputError
from gputopo.values.machine import Gpu, Host, Machine
from gputopo.values.run.result import DeviceResult, Result, Throughput
from tests import there
from tests.invented_bandwidths import MEASURED_AT, bandwidth_of, machine_with, pair
from tests.invented_runs import cpu_devices, on_hosts
from tests.matrices import changed

MACHINE = machine_with(2)


def session(speed: float, gpus: tuple[int, int] = (0, 1), **more: object) -> Bandwidth:
    return msgspec.structs.replace(
        Bandwidth(source="live", samples=Samples((pair(*gpus, speed),)), measured_at=MEASURED_AT), **more
    )


def test_the_last_saved_bandwidth_of_a_machine_comes_back_whole(tmp_path: Path) -> None:
    box = BoxHistory(tmp_path / "new")
    box.save(MACHINE, session(1.0), saved_at=10.0)
    box.save(MACHINE, bandwidth_of(2), saved_at=20.0)
    found = box.latest(MACHINE)
    assert found == Saved(bandwidth=bandwidth_of(2), machine=MACHINE, saved_at=20.0)
    assert box.latest(machine_with(3)) is None


def test_a_later_session_on_fewer_gpus_does_not_hide_the_one_on_all(tmp_path: Path) -> None:
    box, machine = BoxHistory(tmp_path), machine_with(3)
    whole = session(1.0, samples=(pair(0, 1, 1.0), pair(1, 2, 1.0)))
    box.save(machine, whole, saved_at=1.0)
    box.save(machine, session(2.0, (0, 2)), saved_at=2.0)
    assert box.latest(machine) == Saved(bandwidth=whole, machine=machine, saved_at=1.0)
    of_two = there(box.latest(machine, (0, 2)))
    assert of_two.saved_at == 2.0


def without(machine: Machine, *indices: int) -> Machine:
    left = [gpu for gpu in machine.gpus if gpu.index not in indices]
    gpus = tuple(msgspec.structs.replace(gpu, index=index) for index, gpu in enumerate(left))
    return msgspec.structs.replace(machine, gpus=gpus)


@pytest.mark.parametrize(
    "now",
    [
        without(machine_with(4), 1),
        changed(machine_with(4), 2, lost=True, name=None, pci_address=None),
    ],
    ids=["one gone", "one lost without its address"],
)
def test_a_machine_with_fewer_gpus_or_more_is_found_by_the_others(now: Machine, tmp_path: Path) -> None:
    box, then = BoxHistory(tmp_path), machine_with(4)
    box.save(then, bandwidth_of(4), saved_at=1.0)
    assert box.latest(now) is None
    found = box.latest_with_other_gpus(now)
    assert found == Saved(bandwidth=bandwidth_of(4), machine=then, saved_at=1.0)


@pytest.mark.parametrize(
    "other",
    [
        msgspec.structs.replace(machine_with(3), host=Host(cpu_model="Another CPU")),
        msgspec.structs.replace(machine_with(3), host=Host()),
        changed(machine_with(3), 1, name="NVIDIA Test 2"),
        changed(machine_with(3), 1, pci_address="0000:81:00.0"),
    ],
    ids=["cpu", "host not known", "card", "slot"],
)
def test_a_machine_that_differs_in_more_than_the_gpus_it_has_is_another(
    other: Machine, tmp_path: Path
) -> None:
    box = BoxHistory(tmp_path)
    host = Host(cpu_model="A CPU", sockets=1, memory_mib=64_000, virtual_machine="none")
    box.save(msgspec.structs.replace(machine_with(4), host=host), bandwidth_of(4), saved_at=1.0)
    assert box.latest_with_other_gpus(machine_with(3)) is not None
    assert box.latest_with_other_gpus(other) is None


def test_what_cannot_be_distinguished_is_not_filed(tmp_path: Path) -> None:
    for unknown in (Machine(source="p2p", gpus=(Gpu(index=0, name="A"),)), Machine(source="none")):
        assert fingerprint(unknown) is None
        with pytest.raises(InputError, match="cannot be identified"):
            BoxHistory(tmp_path).save(unknown, session(1.0), saved_at=0.0)
    assert list(tmp_path.iterdir()) == []


def test_what_identifies_is_not_filed(tmp_path: Path) -> None:
    box = BoxHistory(tmp_path)
    uuid = "GPU-01234567-89ab-cdef-0123-456789abcdef"
    reported = session(1.0, notes=(f"copied on {uuid}",))
    box.save(changed(MACHINE, 0, uuid=uuid), reported, saved_at=0.0)
    assert uuid.encode() not in box.path.read_bytes()
    assert box.latest(MACHINE) is not None


GARBAGE = b"no database at all, but long enough to look like one" * 40


def test_a_damaged_file_is_reported_and_kept_under_another_name_when_something_is_saved(
    tmp_path: Path,
) -> None:
    box = BoxHistory(tmp_path)
    box.path.write_bytes(GARBAGE)
    with pytest.raises(InputError, match="is damaged"):
        box.latest(MACHINE)
    assert box.path.read_bytes() == GARBAGE
    lost = there(box.save(MACHINE, session(1.0), saved_at=0.0))
    assert "saved bandwidths are lost" in lost
    assert (tmp_path / "history.sqlite.damaged").read_bytes() == GARBAGE
    assert box.latest(MACHINE) is not None
    assert box.save(MACHINE, session(1.0), saved_at=0.0) is None


def later_version(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")


def test_a_file_of_a_later_version_is_neither_read_nor_written(tmp_path: Path) -> None:
    box = BoxHistory(tmp_path)
    later_version(box.path)
    with pytest.raises(InputError, match="later version"):
        box.latest(MACHINE)
    before = box.path.read_bytes()
    with pytest.raises(InputError, match="later version"):
        box.save(MACHINE, session(1.0), saved_at=0.0)
    with pytest.raises(InputError, match="later version"):
        box.add(tmp_path)
    assert box.path.read_bytes() == before


def test_a_full_disk_is_reported_in_one_line_and_what_was_there_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = BoxHistory(tmp_path)
    box.save(MACHINE, session(1.0), saved_at=1.0)
    connect = sqlite3.connect

    def full(*arguments: object, **more: object) -> sqlite3.Connection:
        connection = connect(*arguments, **more)  # type: ignore[call-overload]
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        assert isinstance(connection, sqlite3.Connection)
        return connection

    monkeypatch.setattr(sqlite3, "connect", full)
    large = bandwidth_of(8)
    with pytest.raises(InputError, match="no space left"):
        box.save(MACHINE, large, saved_at=2.0)
    found = there(box.latest(MACHINE))
    assert found.saved_at == 1.0


def test_a_place_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write") as error:
        BoxHistory(tmp_path / "file").save(MACHINE, session(1.0), saved_at=0.0)
    assert "GPUTOPO_HOME" in error.value.hint


def test_a_writer_that_waits_too_long_reports_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = sqlite3.connect

    def impatient(*arguments: Any, **more: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **{**more, "timeout": 0.0})
        assert isinstance(connection, sqlite3.Connection)
        return connection

    monkeypatch.setattr(sqlite3, "connect", impatient)
    box = BoxHistory(tmp_path)
    box.save(MACHINE, session(1.0), saved_at=0.0)
    holder = sqlite3.connect(box.path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(InputError, match="in use"):
        box.save(MACHINE, session(2.0), saved_at=0.0)
    holder.execute("COMMIT")
    holder.close()


def test_the_date_is_that_of_measuring_and_of_filing_where_that_is_all_that_is_known() -> None:
    measured = Saved(bandwidth=session(1.0), machine=MACHINE, saved_at=0.0)
    assert measured.date == "2026-11-18 11:06 UTC"
    read = Saved(bandwidth=session(1.0, measured_at=None), machine=MACHINE, saved_at=0.0)
    assert read.date.endswith("(saved 1970-01-01 00:00 UTC)")
    assert Saved(bandwidth=session(1.0, measured_at=1e300), machine=MACHINE, saved_at=0.0).date


def between(*hosts: str, rate: float = 1.0) -> Bandwidth:
    return Bandwidth(
        source="live",
        samples=Samples(
            TransferRate(
                kind="network", source=End(f"host:{a}"), destination=End(f"host:{b}"), median_gb_per_s=rate
            )
            for a in hosts
            for b in hosts
            if a != b
        ),
        measured_at=1_795_000_000.0,
    )


def test_the_last_measurement_that_has_all_hosts_is_returned(tmp_path: Path) -> None:
    box = BoxHistory(tmp_path)
    assert box.latest_network({"n1"}) is None
    box.save_network(between("n1", "n2", "n3"), saved_at=1.0)
    box.save_network(between("n1", "n2", rate=2.0), saved_at=2.0)
    box.save_network(between("n4", "n5"), saved_at=3.0)
    found = there(box.latest_network({"n2", "n1"}))
    assert found.bandwidth == between("n1", "n2", rate=2.0)
    whole = there(box.latest_network({"n3", "n1"}))
    assert len(whole.bandwidth.samples) == 6
    assert box.latest_network({"n1", "n4"}) is None


def result_of(speed: float, model: str = "alexnet", **more: Any) -> Result:
    """The result of a run at this speed."""
    throughput = Throughput(mean=speed, uncertainty=0.0, jitter=0.0, median=speed, total=speed)
    spec = {"model": model, **more}
    return Result(status="complete", exit_code=0, spec=spec, backend="gpu", throughput=throughput)


def run_folder(folder: Path, result: Result, finished_at: float, machine: Machine | None = MACHINE) -> Path:
    """The folder of a run that ended then."""
    folder.mkdir(parents=True)
    schema.write(folder / "result.json", result)
    os.utime(folder / "result.json", (finished_at, finished_at))
    if machine is not None:
        schema.write(folder / "machine.json", machine)
    return folder


def speeds(box: BoxHistory, *asked: Machine, **more: Any) -> list[float]:
    """The speeds of the runs that were asked for."""
    return [there(one.result.throughput).median for one in box.past(*asked, **more)]


@pytest.fixture
def runs(tmp_path: Path) -> BoxHistory:
    """The history of a data folder with four runs: two of this machine, and of others."""
    folder = tmp_path / "runs"
    run_folder(folder / "20260101-000000-alexnet-1", result_of(1.0), 10.0)
    run_folder(folder / "20260102-000000-vgg16-1", result_of(2.0, "vgg16"), 20.0)
    run_folder(folder / "20260103-000000-alexnet-1", result_of(3.0), 30.0, machine_with(3))
    run_folder(folder / "20260104-000000-alexnet-1", result_of(4.0), 40.0, None)
    return BoxHistory(tmp_path)


def test_runs_come_from_their_folders_whole_and_the_latest_first(runs: BoxHistory) -> None:
    *_, second, first = runs.past()
    assert first == Past(
        result=result_of(1.0),
        finished_at=10.0,
        folder=str(runs.runs / "20260101-000000-alexnet-1"),
        fingerprint=there(fingerprint(MACHINE)),
    )
    assert second.result == result_of(2.0, "vgg16")
    run_folder(runs.runs / "20260105-000000-alexnet-1", result_of(5.0), 50.0)
    assert speeds(runs) == [5.0, 4.0, 3.0, 2.0, 1.0]


def test_they_are_found_by_machine_model_and_time(runs: BoxHistory) -> None:
    assert speeds(runs, MACHINE) == [2.0, 1.0]
    assert speeds(runs, Machine(source="none")) == []  # it cannot be identified
    assert speeds(runs, model="alexnet") == [4.0, 3.0, 1.0]
    assert speeds(runs, since=20.0) == [4.0, 3.0, 2.0]
    assert speeds(runs, MACHINE, model="alexnet", since=11.0) == []
    assert speeds(runs, limit=2) == [4.0, 3.0]


def test_cells_of_a_sweep_are_runs_and_short_runs_are_asked_for(tmp_path: Path) -> None:
    sweep, screen = tmp_path / "runs/20260101-000000-sweep-1", tmp_path / "runs/20260102-000000-alexnet-1"
    run_folder(sweep / "cells/0001", result_of(1.0), 10.0)
    run_folder(screen / "screen/alone-1", result_of(2.0), 20.0)
    box = BoxHistory(tmp_path)
    assert speeds(box) == [1.0]
    run_folder(sweep / "cells/0002", result_of(3.0), 30.0)
    run_folder(screen / "autotune/1-1", result_of(4.0), 40.0)
    (screen / "autotune/1-2").mkdir()
    assert speeds(box) == [3.0, 1.0]
    assert speeds(box, with_short=True) == [4.0, 3.0, 2.0, 1.0]


def test_a_run_of_several_hosts_is_no_run_of_one(tmp_path: Path) -> None:
    rows = tuple(DeviceResult(device=one, batch_size=8) for one in on_hosts(cpu_devices(1), cpu_devices(1)))
    run_folder(tmp_path / "runs/1", msgspec.structs.replace(result_of(1.0), devices=rows), 10.0)
    run_folder(tmp_path / "runs/2", result_of(2.0), 20.0)
    box = BoxHistory(tmp_path)
    assert speeds(box) == [2.0]
    assert speeds(box, of_hosts=True) == [1.0]


def test_a_drill_and_what_cannot_be_read_are_left_out(runs: BoxHistory) -> None:
    run_folder(runs.runs / "5", result_of(5.0, drills=[{"kind": "slow"}]), 50.0)
    run_folder(runs.runs / "6", result_of(6.0), 60.0)
    (runs.runs / "6/result.json").write_text("{ cut off")
    (runs.runs / "7").write_text("no folder")
    assert speeds(runs) == [4.0, 3.0, 2.0, 1.0]


def test_a_lost_file_is_made_again_but_for_runs_whose_folders_are_gone(
    runs: BoxHistory, tmp_path: Path
) -> None:
    assert runs.add(run_folder(tmp_path / "elsewhere", result_of(5.0), 50.0)) is None
    shutil.rmtree(tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "runs/20260101-000000-alexnet-1")
    runs.add(tmp_path / "runs/20260104-000000-alexnet-1")
    assert speeds(runs) == [5.0, 4.0, 3.0, 2.0, 1.0]
    runs.path.unlink()
    assert speeds(runs) == [4.0, 3.0, 2.0]


@pytest.mark.parametrize("state", ["damaged", "later"])
def test_runs_are_read_from_their_folders_if_the_file_cannot_be_used(state: str, runs: BoxHistory) -> None:
    if state == "damaged":
        runs.path.write_bytes(GARBAGE)
    else:
        later_version(runs.path)
    assert speeds(runs, MACHINE) == [2.0, 1.0]
    assert state != "damaged" or runs.path.read_bytes() == GARBAGE


def test_parallel_runs_lose_no_result_and_none_is_there_twice(tmp_path: Path) -> None:
    """Threads with a connection each: SQLite locks the file between connections, of whatever process."""

    def add_and_read(number: int) -> None:
        box = BoxHistory(tmp_path)
        for place in range(5):
            name = f"{number}-{place}"
            box.add(run_folder(tmp_path / "elsewhere" / name, result_of(1.0), 1.0))
            run_folder(box.runs / name, result_of(1.0), 1.0)
            assert next(box.past(), None) is not None

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(add_and_read, range(2)))
    names = [f"{where}/{a}-{b}" for where in ("elsewhere", "runs") for a in range(2) for b in range(5)]
    assert sorted(one.folder for one in BoxHistory(tmp_path).past()) == [
        str(tmp_path / name) for name in names
    ]
