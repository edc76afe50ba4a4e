import multiprocessing
import sqlite3
from pathlib import Path

import msgspec
import pytest

from gputopo.runs import history
from gputopo.values.bandwidth import Bandwidth
from gputopo.values.errors import InputError
from gputopo.values.machine import Gpu, Host, Machine
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


def test_without_a_file_nothing_was_saved_and_none_is_made(tmp_path: Path) -> None:
    assert history.latest(tmp_path / history.FILE, MACHINE) is None
    assert list(tmp_path.iterdir()) == []


def test_a_later_session_on_fewer_gpus_does_not_hide_the_one_on_all(tmp_path: Path) -> None:
    path, machine = tmp_path / history.FILE, machine_with(3)
    whole = session(1.0, samples=(pair(0, 1, 1.0), pair(1, 2, 1.0)))
    history.save(path, machine, whole, saved_at=1.0)
    history.save(path, machine, session(2.0, (0, 2)), saved_at=2.0)
    assert history.latest(path, machine) == history.Saved(bandwidth=whole, machine=machine, saved_at=1.0)
    of_two = history.latest(path, machine, (0, 2))
    assert of_two is not None
    assert of_two.saved_at == 2.0


def test_where_no_session_is_on_all_gpus_the_last_one_stands(tmp_path: Path) -> None:
    path, machine = tmp_path / history.FILE, machine_with(4)
    for number, gpus in enumerate([(0, 1), (1, 2)]):
        history.save(path, machine, session(1.0, gpus), saved_at=float(number))
    found = history.latest(path, machine)
    assert found is not None
    assert found.saved_at == 1.0


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
        without(machine_with(4), 0, 3),
        machine_with(5),
        changed(machine_with(4), 2, lost=True, name=None),
        changed(machine_with(4), 2, lost=True, name=None, pci_address=None),
    ],
    ids=["one gone", "two gone", "one more", "one lost", "one lost without its address"],
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
        msgspec.structs.replace(machine_with(3), host=Host(cpu_model="A CPU", virtual_machine="kvm")),
        msgspec.structs.replace(machine_with(3), host=Host()),
        changed(machine_with(3), 1, name="NVIDIA Test 2"),
        changed(machine_with(3), 1, pci_address="0000:81:00.0"),
        without(machine_with(3), 0, 1, 2),
    ],
    ids=["cpu", "sockets", "memory", "virtual", "host not known", "card", "slot", "no GPU"],
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
    found = history.latest_with_other_gpus(path, now)
    assert found is not None
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


def test_a_place_that_cannot_be_looked_into_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read .*: File name too long") as error:
        history.latest(tmp_path / ("a" * 300) / history.FILE, MACHINE)
    assert "GPUTOPO_HOME" in error.value.hint


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


def test_a_file_whose_pages_were_overwritten_is_reported_as_damaged(tmp_path: Path) -> None:
    path = tmp_path / history.FILE
    for number in range(40):
        history.save(path, MACHINE, bandwidth_of(2), saved_at=float(number))
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(InputError, match="is damaged"):
        history.latest(path, MACHINE)


def test_an_empty_file_is_an_empty_history(tmp_path: Path) -> None:
    path = tmp_path / history.FILE
    path.touch()
    assert history.latest(path, MACHINE) is None
    history.save(path, MACHINE, session(1.0), saved_at=0.0)
    assert history.latest(path, MACHINE) is not None


def test_a_file_of_a_later_version_is_neither_read_nor_written(tmp_path: Path) -> None:
    path = tmp_path / history.FILE
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 7")
    connection.close()
    with pytest.raises(InputError, match="later version"):
        history.latest(path, MACHINE)
    with pytest.raises(InputError, match="later version"):
        history.save(path, MACHINE, session(1.0), saved_at=0.0)


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
    found = history.latest(path, MACHINE)
    assert found is not None
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


def _save_some(path: str, start: int) -> None:
    for number in range(start, start + 5):
        history.save(Path(path), MACHINE, session(1.0), saved_at=float(number))


def test_two_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / history.FILE
    fresh = multiprocessing.get_context("spawn")
    writers = [fresh.Process(target=_save_some, args=(str(path), start)) for start in (0, 100)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    connection = sqlite3.connect(path)
    times = {row[0] for row in connection.execute("SELECT saved_at FROM bandwidth")}
    connection.close()
    assert times == {*map(float, range(5)), *map(float, range(100, 105))}


def test_the_date_is_that_of_measuring_and_of_filing_where_that_is_all_that_is_known() -> None:
    measured = history.Saved(bandwidth=session(1.0), machine=MACHINE, saved_at=0.0)
    assert measured.date == "2026-11-18 11:06 UTC"
    read = history.Saved(bandwidth=session(1.0, measured_at=None), machine=MACHINE, saved_at=0.0)
    assert read.date.endswith("(saved 1970-01-01 00:00 UTC)")
    assert history.Saved(bandwidth=session(1.0, measured_at=1e300), machine=MACHINE, saved_at=0.0).date


def test_the_home_can_be_set(tmp_path: Path) -> None:
    assert history.history_file({"GPUTOPO_HOME": str(tmp_path)}) == tmp_path / "history.sqlite"
    assert history.history_file({}).name == "history.sqlite"
