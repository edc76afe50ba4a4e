"""The history: by machine, model and time, safe beside other writers and later versions."""

import multiprocessing
import sqlite3
from pathlib import Path

import msgspec
import pytest

from gputopo.runs import history
from gputopo.runs.history import latest_network, save_network, save_result, stored_results
from gputopo.values.bandwidth import Bandwidth, Sample
from gputopo.values.ends import End
from gputopo.values.errors import InputError
from gputopo.values.machine import Gpu, Host, Machine
from gputopo.values.run.result import Result, Throughput
from tests import there
from tests.invented_bandwidths import MEASURED_AT, bandwidth_of, machine_with, pair
from tests.matrices import changed

MACHINE = machine_with(2)


def session(speed: float, gpus: tuple[int, int] = (0, 1), **more: object) -> Bandwidth:
    return msgspec.structs.replace(
        Bandwidth(source="live", samples=(pair(*gpus, speed),), measured_at=MEASURED_AT), **more
    )


def test_the_last_saved_bandwidth_of_a_machine_comes_back_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / history.FILE
    history.save(path, MACHINE, session(1.0), saved_at=10.0)
    history.save(path, MACHINE, bandwidth_of(2), saved_at=20.0)
    found = history.latest(path, MACHINE)
    assert found == history.Saved(bandwidth=bandwidth_of(2), machine=MACHINE, saved_at=20.0)
    assert history.latest(path, machine_with(3)) is None


def test_a_later_session_on_fewer_gpus_does_not_hide_the_one_on_all(tmp_path: Path) -> None:
    path, machine = tmp_path / history.FILE, machine_with(3)
    whole = session(1.0, samples=(pair(0, 1, 1.0), pair(1, 2, 1.0)))
    history.save(path, machine, whole, saved_at=1.0)
    history.save(path, machine, session(2.0, (0, 2)), saved_at=2.0)
    assert history.latest(path, machine) == history.Saved(bandwidth=whole, machine=machine, saved_at=1.0)
    of_two = there(history.latest(path, machine, (0, 2)))
    assert of_two.saved_at == 2.0


@pytest.mark.parametrize(
    "other",
    [
        changed(MACHINE, 1, name="NVIDIA Test 2"),
        changed(MACHINE, 0, pci_address="0000:0a:00.0"),
        msgspec.structs.replace(MACHINE, host=Host(cpu_model="Another CPU")),
        machine_with(1),
    ],
    ids=["card", "slot", "cpu", "count"],
)
def test_another_card_slot_cpu_or_number_of_cards_is_another_machine(other: Machine) -> None:
    assert history.fingerprint(other) not in (None, history.fingerprint(MACHINE))


def without(machine: Machine, *indices: int) -> Machine:
    left = [gpu for gpu in machine.gpus if gpu.index not in indices]
    gpus = tuple(msgspec.structs.replace(gpu, index=index) for index, gpu in enumerate(left))
    return msgspec.structs.replace(machine, gpus=gpus)


@pytest.mark.parametrize(
    "now",
    [
        without(machine_with(4), 1),
        machine_with(5),
        changed(machine_with(4), 2, lost=True, name=None, pci_address=None),
    ],
    ids=["one gone", "one more", "one lost without its address"],
)
def test_a_machine_with_fewer_gpus_or_more_is_found_by_the_others(now: Machine, tmp_path: Path) -> None:
    path, then = tmp_path / history.FILE, machine_with(4)
    history.save(path, then, bandwidth_of(4), saved_at=1.0)
    assert history.latest(path, now) is None
    found = history.latest_with_other_gpus(path, now)
    assert found == history.Saved(bandwidth=bandwidth_of(4), machine=then, saved_at=1.0)


@pytest.mark.parametrize(
    "other",
    [
        msgspec.structs.replace(machine_with(3), host=Host(cpu_model="Another CPU")),
        msgspec.structs.replace(machine_with(3), host=Host(cpu_model="A CPU", sockets=2)),
        msgspec.structs.replace(machine_with(3), host=Host(cpu_model="A CPU", memory_mib=32_000)),
        msgspec.structs.replace(machine_with(3), host=Host()),
        changed(machine_with(3), 1, name="NVIDIA Test 2"),
        changed(machine_with(3), 1, pci_address="0000:81:00.0"),
        without(machine_with(3), 0, 1, 2),
    ],
    ids=["cpu", "sockets", "memory", "host not known", "card", "slot", "no GPU"],
)
def test_a_machine_that_differs_in_more_than_the_gpus_it_has_is_another(
    other: Machine, tmp_path: Path
) -> None:
    path = tmp_path / history.FILE
    host = Host(cpu_model="A CPU", sockets=1, memory_mib=64_000, virtual_machine="none")
    history.save(path, msgspec.structs.replace(machine_with(4), host=host), bandwidth_of(4), saved_at=1.0)
    assert history.latest_with_other_gpus(path, machine_with(3)) is not None
    assert history.latest_with_other_gpus(path, other) is None


def test_of_what_was_saved_with_other_gpus_the_last_on_all_that_are_left_is_taken(tmp_path: Path) -> None:
    path, now = tmp_path / history.FILE, without(machine_with(4), 1)
    assert history.latest_with_other_gpus(path, now) is None
    another = msgspec.structs.replace(machine_with(4), host=Host(cpu_model="Another CPU"))
    for saved_at, machine, gpus in (
        (1.0, machine_with(4), (0, 1)),
        (2.0, machine_with(4), (0, 2, 3)),
        (3.0, machine_with(4), (0, 1)),
        (4.0, another, (0, 2, 3)),
    ):
        samples = tuple(pair(gpus[0], other, 1.0) for other in gpus[1:])
        history.save(path, machine, session(1.0, samples=samples), saved_at=saved_at)
    found = there(history.latest_with_other_gpus(path, now))
    assert found.saved_at == 2.0


def test_the_fingerprint_holds_no_identity_and_does_not_depend_on_order_or_state() -> None:
    same = msgspec.structs.replace(
        changed(MACHINE, 0, uuid="GPU-1", pstate="P8"), gpus=MACHINE.gpus[::-1], source="recording"
    )
    key = history.fingerprint(MACHINE)
    assert history.fingerprint(same) == key
    assert key is not None
    assert len(key) == 64
    assert set(key) <= set("0123456789abcdef")


def test_a_driver_that_names_the_maker_is_no_other_machine() -> None:
    def key(name: str) -> str | None:
        gpus = tuple(msgspec.structs.replace(gpu, name=name) for gpu in MACHINE.gpus)
        return history.fingerprint(msgspec.structs.replace(MACHINE, gpus=gpus))

    assert key("NVIDIA GeForce GTX 1070") == key("GeForce GTX 1070")
    assert key("GeForce GTX 1070") not in (None, key("GeForce GTX 1080"))


def test_what_cannot_be_distinguished_is_not_filed(tmp_path: Path) -> None:
    for unknown in (Machine(source="p2p", gpus=(Gpu(index=0, name="A"),)), Machine(source="none")):
        assert history.fingerprint(unknown) is None
        with pytest.raises(InputError, match="cannot be identified"):
            history.save(tmp_path / history.FILE, unknown, session(1.0), saved_at=0.0)
    assert list(tmp_path.iterdir()) == []


def test_what_identifies_is_not_filed(tmp_path: Path) -> None:
    path = tmp_path / history.FILE
    uuid = "GPU-01234567-89ab-cdef-0123-456789abcdef"
    reported = session(1.0, notes=(f"copied on {uuid}",))
    history.save(path, changed(MACHINE, 0, uuid=uuid), reported, saved_at=0.0)
    assert uuid.encode() not in path.read_bytes()
    assert history.latest(path, MACHINE) is not None


def test_a_damaged_file_is_reported_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / history.FILE
    path.write_bytes(b"no database at all, but long enough to look like one" * 40)
    before = path.read_bytes()
    with pytest.raises(InputError, match="is damaged"):
        history.latest(path, MACHINE)
    with pytest.raises(InputError, match="is damaged") as error:
        history.save(path, MACHINE, session(1.0), saved_at=0.0)
    assert "move it away" in error.value.hint
    assert path.read_bytes() == before


def test_a_file_of_a_later_version_is_neither_read_nor_written(tmp_path: Path) -> None:
    path = tmp_path / history.FILE
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 7")
    connection.close()
    with pytest.raises(InputError, match="later version"):
        history.latest(path, MACHINE)
    before = path.read_bytes()
    with pytest.raises(InputError, match="later version"):
        history.save(path, MACHINE, session(1.0), saved_at=0.0)
    with pytest.raises(InputError, match="later version"):
        save_result(path, MACHINE, result_of(2.0), folder="/b", finished_at=2.0)
    assert path.read_bytes() == before


def test_a_full_disk_is_reported_in_one_line_and_what_was_there_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / history.FILE
    history.save(path, MACHINE, session(1.0), saved_at=1.0)
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
        history.save(path, MACHINE, large, saved_at=2.0)
    found = there(history.latest(path, MACHINE))
    assert found.saved_at == 1.0


def test_a_place_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write") as error:
        history.save(tmp_path / "file" / history.FILE, MACHINE, session(1.0), saved_at=0.0)
    assert "GPUTOPO_HOME" in error.value.hint


def test_a_writer_that_waits_too_long_reports_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gputopo.runs.history.WAIT_S", 0.0)
    path = tmp_path / history.FILE
    history.save(path, MACHINE, session(1.0), saved_at=0.0)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(InputError, match="in use"):
        history.save(path, MACHINE, session(2.0), saved_at=0.0)
    holder.execute("COMMIT")
    holder.close()


def test_the_date_is_that_of_measuring_and_of_filing_where_that_is_all_that_is_known() -> None:
    measured = history.Saved(bandwidth=session(1.0), machine=MACHINE, saved_at=0.0)
    assert measured.date == "2026-11-18 11:06 UTC"
    read = history.Saved(bandwidth=session(1.0, measured_at=None), machine=MACHINE, saved_at=0.0)
    assert read.date.endswith("(saved 1970-01-01 00:00 UTC)")
    assert history.Saved(bandwidth=session(1.0, measured_at=1e300), machine=MACHINE, saved_at=0.0).date


def between(*hosts: str, rate: float = 1.0) -> Bandwidth:
    return Bandwidth(
        source="live",
        samples=tuple(
            Sample(
                kind="network", source=End(f"host:{a}"), destination=End(f"host:{b}"), median_gb_per_s=rate
            )
            for a in hosts
            for b in hosts
            if a != b
        ),
        measured_at=1_795_000_000.0,
    )


def test_the_last_measurement_that_has_all_hosts_is_returned(tmp_path: Path) -> None:
    file = tmp_path / "history.sqlite"
    assert latest_network(file, {"n1"}) is None
    save_network(file, between("n1", "n2", "n3"), saved_at=1.0)
    save_network(file, between("n1", "n2", rate=2.0), saved_at=2.0)
    save_network(file, between("n4", "n5"), saved_at=3.0)
    found = there(latest_network(file, {"n2", "n1"}))
    assert found.bandwidth == between("n1", "n2", rate=2.0)
    whole = there(latest_network(file, {"n3", "n1"}))
    assert len(whole.bandwidth.samples) == 6
    assert latest_network(file, {"n1", "n4"}) is None


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
