"""Run folders and sweeps as measurements: what failed has its reason and no figure."""

from pathlib import Path

import msgspec

from gputopo.captures import read_bundled, read_measurements
from gputopo.measurements import RunFolders, study_of
from gputopo.runs import summarise
from gputopo.values import schema
from gputopo.values.run.events import RunFinished, encode_line
from gputopo.values.run.measurement import DRILL, Measurement
from gputopo.values.run.result import Result
from gputopo.values.run.several_runs import MANIFEST, CellState, Sweep, SweepCell
from tests.invented_runs import InventedRun, cpu_devices, gpu_devices, on_hosts, stream

STATES: dict[str, tuple[CellState, str | None]] = {
    "ran": ("done", None),
    "died-before-it-began": ("failed", "out of memory"),
    "died-later": ("failed", "out of memory"),
    "never": ("failed", "no free GPU"),
    "refused": ("refused", "--ps cpu cannot be combined with --variable-update replicated"),
    "not-here": ("left_out", "this machine has 2 devices, 8 were asked for"),
    "later": ("pending", None),
    "../../outside": ("failed", "no such folder"),
}


def sweep_folder(path: Path) -> Path:
    """Write a sweep with a cell of every state, drawn data, and documents that hold no measurement."""
    cells = tuple(
        SweepCell(
            number=number, name=name, table="t", state=state, reason=reason,
            options={"model": name},
        )
        for number, (name, (state, reason)) in enumerate(STATES.items(), 1)
    )  # fmt: skip
    events = list(stream(cpu_devices(2), InventedRun(2).steps(20)))
    dead = [RunFinished(time_s=1.0, status="failed", exit_code=1, wall_s=1.0)]
    for name in ("ran", "died-later", "died-before-it-began"):
        folder = path / "cells" / name
        folder.mkdir(parents=True)
        some = events if name == "ran" else [*events[:9], *dead] if name == "died-later" else dead
        (folder / "events.jsonl").write_bytes(b"".join(map(encode_line, some)))
        if name == "ran":
            schema.write(folder / "result.json", summarise(events))
    (path / "data").mkdir()
    (path / "data" / "train-00000-of-00001").write_bytes(b"\0\1\2")
    for kind in ("screen", "autotune"):
        (path / f"{kind}.json").write_text(f'{{"schema": "gputopo.{kind}/1"}}')
    schema.write(
        path / MANIFEST,
        Sweep(title="t", origin="t.toml", matrix="", backend="cpu", cells=cells),
    )
    return path


def test_a_sweep_has_its_runs_and_states_what_failed_before_its_run_and_what_is_left(tmp_path: Path) -> None:
    sweep_folder(tmp_path)
    folders = RunFolders()
    found = read_measurements([str(tmp_path)], read_run=folders.run, read_json=folders.document)
    assert found.passed == 0
    statuses = {Path(one.source).name: one.status for one in found.measurements}
    assert statuses == {"ran": "complete", "died-later": "failed"}
    ((folder, _),) = found.unread
    assert folder == str(tmp_path / "cells" / "died-before-it-began")
    reasons = [why for name, why in folders.failed if MANIFEST in name]
    assert reasons == ["no free GPU", "no such folder"]
    study = study_of(found.measurements, title="t", unfinished=folders.unfinished)
    assert study.headline.startswith("Interrupted: 1 of 8 cells of a sweep has not run.")


def test_the_short_runs_of_a_screen_are_of_the_machine_of_its_folder(tmp_path: Path) -> None:
    box = read_bundled("7gforce")
    for folder in ("screen/screen/alone-0-1", "run"):
        run = tmp_path / folder
        run.mkdir(parents=True)
        schema.write(run / "result.json", summarise(list(stream(cpu_devices(1), InventedRun(1).steps(20)))))
    for folder in ("screen", "run"):
        schema.write(tmp_path / folder / "machine.json", box)
    folders = RunFolders()
    found = read_measurements([str(tmp_path)], read_run=folders.run, read_json=folders.document)
    assert len({one.machine for one in found.measurements}) == 1
    assert None not in {one.machine for one in found.measurements}


def measured(folder: Path, result: Result) -> Measurement:
    """The measurement of a run with this result."""
    schema.write(folder / "result.json", result)
    return RunFolders().run(folder)


def test_a_measurement_has_the_unit_of_its_run(tmp_path: Path) -> None:
    result = summarise(stream(cpu_devices(1), InventedRun(1).steps(20)))
    assert measured(tmp_path, msgspec.structs.replace(result, unit="examples")).unit == "examples"


def test_gpus_of_several_hosts_are_named_by_tower_as_their_numbers_are_of_different_hosts(
    tmp_path: Path,
) -> None:
    for devices, gpus in ((gpu_devices(2), (0, 1)), (on_hosts(gpu_devices(1), gpu_devices(1)), ())):
        found = measured(tmp_path, summarise(stream(devices, InventedRun(2).steps(5))))
        assert (found.gpus, found.n_gpus) == (gpus, 2)
        assert [one.number for one in found.devices] == [0, 1]


def test_the_drills_of_a_run_are_among_its_conditions_as_they_were_typed(tmp_path: Path) -> None:
    whole = Result(status="complete", exit_code=0, spec={"model": "alexnet"}, backend="cpu")
    drills = [{"fault": "slow-gpu", "device": 1, "factor": 0.9}]
    drill = msgspec.structs.replace(whole, spec={**whole.spec, "drills": drills})
    assert not measured(tmp_path, whole).is_drill
    assert measured(tmp_path, drill).conditions == (f"{DRILL} (slow-gpu=1:0.9)",)


def test_one_bad_byte_in_the_events_of_a_run_is_a_line_of_its_own(tmp_path: Path) -> None:
    events = b"".join(map(encode_line, stream(cpu_devices(1), InventedRun(1).steps(20))))
    line = events.index(b"\n", len(events) // 2) + 1
    for name, data in (("good", events), ("bad", events[:line] + b"\xff" + events[line + 1 :])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "events.jsonl").write_bytes(data)
    folders = RunFolders()
    found = read_measurements([str(tmp_path)], read_run=folders.run, read_json=folders.document)
    assert (len(found.measurements), len(found.unread)) == (1, 1)
    assert str(tmp_path / "bad") in found.unread[0][1]


def test_a_document_of_a_newer_gputopo_is_not_read_and_says_so(tmp_path: Path) -> None:
    for kind in ("result", "study", "sweep"):
        (tmp_path / f"{kind}.json").write_text(f'{{"schema": "gputopo.{kind}/9"}}')
    folders = RunFolders()
    (tmp_path / "in").mkdir()
    (tmp_path / "result.json").rename(tmp_path / "in" / "result.json")
    found = read_measurements([str(tmp_path)], read_run=folders.run, read_json=folders.document)
    assert len(found.unread) == 3
    assert all("/9" in why for _, why in found.unread)
