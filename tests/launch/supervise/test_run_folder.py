import errno
import json
import os
import re
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gputopo.launch.supervise import EventLog, RunFolder, create_run_folder, save_result
from gputopo.values import schema
from gputopo.values.errors import GputopoError, HardwareError, InputError
from gputopo.values.run.events import WarmupDone
from gputopo.values.run.plan import Plan
from gputopo.values.run.result import Result
from gputopo.values.run.spec import RunSpec
from tests.launch.specs import cpu_spec, machine, plan_for

RESULT = Result(status="complete", exit_code=0, spec={}, backend="cpu")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUTOPO_HOME", str(tmp_path / "home"))


def create(output: Path | None) -> RunFolder:
    return create_run_folder(output, spec=cpu_spec(), plan=plan_for((0, 1)), machine=machine())


def test_a_new_folder_is_named_by_time_and_model_and_counts_up() -> None:
    names = [create(None).path.name for _ in range(3)]
    assert all(re.fullmatch(r"20\d{6}-\d{6}-trivial-[1-3]", name) for name in names), names
    assert sorted(names) == names
    assert len({*names}) == 3


def test_it_holds_spec_plan_and_machine_without_identities(tmp_path: Path) -> None:
    folder = create(tmp_path / "out")
    assert sorted(path.name for path in folder.path.iterdir()) == ["machine.json", "plan.json", "spec.json"]
    assert schema.decode(folder.spec.read_bytes(), RunSpec, origin="spec") == cpu_spec()
    assert "GPU-00-aa" not in "".join(path.read_text() for path in folder.path.iterdir())
    plan = schema.decode((folder.path / "plan.json").read_bytes(), Plan, origin="plan")
    assert plan.environment == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0,1"}


@pytest.mark.parametrize("trace", ["spec.json", "events.jsonl", "worker.log"])
def test_a_folder_that_holds_a_run_is_refused_and_left_as_it_is(tmp_path: Path, trace: str) -> None:
    (tmp_path / trace).write_text("before")
    with pytest.raises(InputError, match="already holds a run"):
        create(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [trace]
    assert (tmp_path / trace).read_text() == "before"


def test_of_two_runs_that_begin_at_once_in_one_folder_one_gets_it(tmp_path: Path) -> None:
    begin = threading.Barrier(2)

    def begun(output: Path) -> str | None:
        """The error that refused the run, None where it got the folder."""
        begin.wait(timeout=60)
        try:
            create(output)
        except InputError as error:
            return error.what
        return None

    with ThreadPoolExecutor(2) as both:
        for number in range(5):
            output = tmp_path / str(number)
            first, second = both.map(begun, (output, output))
            assert [first, second].count(None) == 1
            assert "already holds a run" in (first or second or "")
            assert len(list(output.iterdir())) == 3


def test_a_run_that_came_to_nothing_leaves_the_folder_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(path: Path, value: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(schema, "write", interrupt)
        with pytest.raises(KeyboardInterrupt):
            create(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert create(tmp_path / "out").spec.stat().st_size


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="is not a folder"):
        create(tmp_path / "file")
    with pytest.raises(InputError, match="cannot make the run folder"):
        create(tmp_path / "file" / "below")
    assert (tmp_path / "file").read_text() == "x"


@pytest.mark.parametrize(
    ("refused", "number", "kind", "todo"),
    [
        ("the folder", errno.EACCES, InputError, "use a writable folder"),
        ("the folder", errno.ENOSPC, HardwareError, "free some space"),
        ("its files", errno.ENOSPC, HardwareError, "free some space"),
    ],
)
def test_a_full_disk_is_no_mistake_of_who_named_the_folder(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused: str,
    number: int,
    kind: type[GputopoError],
    todo: str,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    if refused == "the folder":
        monkeypatch.setattr(Path, "mkdir", refuse)
    else:
        monkeypatch.setattr(tempfile, "mkstemp", refuse)
    with pytest.raises(kind) as error:
        create(tmp_path / "out")
    assert os.strerror(number) in error.value.what
    assert todo in error.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_refuses_raises_and_the_lines_before_stay_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    event = WarmupDone(time_s=1.0, steps=3, seconds=0.5)
    log.write(event)
    real = os.write
    room = iter([9])

    def nearly_full(handle: int, data: memoryview) -> int:
        left = next(room, None)
        if left is None:
            raise OSError(28, "No space left on device")
        return real(handle, data[:left])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", nearly_full)
        with pytest.raises(OSError, match="No space left"):
            log.write(event)
    log.close()
    text = (tmp_path / "events.jsonl").read_text()
    assert len(text.splitlines()) == 1
    assert json.loads(text)["event"] == "warmup_done"


def test_a_result_that_cannot_be_written_is_given_back_with_that_failure(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "gone")
    given = save_result(folder, RESULT)
    assert given.failure is not None
    assert (given.status, given.exit_code, given.failure.kind) == ("failed", 3, "disk_full")
    assert not folder.path.exists()
