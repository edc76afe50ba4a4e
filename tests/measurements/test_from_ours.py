"""A sweep's folder: every cell once, with its run or with the reason why it has none; never 0."""

from pathlib import Path

import msgspec
import pytest

from gputopo.captures.recording import read_bundled
from gputopo.captures.training_files import read
from gputopo.measurements.from_ours import of_result
from gputopo.measurements.run_folders import RunFolders
from gputopo.measurements.study import study_of
from gputopo.report.document import Table
from gputopo.report.study import study_document
from gputopo.runs.summary import summarise
from gputopo.values import schema
from gputopo.values.run.events import RunFinished, encode_line
from gputopo.values.run.measurement import Measurement
from gputopo.values.run.several_runs import MANIFEST, CellState, Sweep, SweepCell
from tests.invented_runs import InventedRun, cpu_devices, stream

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


OPTIONS: dict[str, dict[str, object]] = {
    "refused": {"precision": "fp16", "data_source": "cpu", "task": "forward"},
    "not-here": {"data_dir": "made:cifar10", "xla": True},
}
DEFAULTS = {"precision": "fp32", "data_source": "gpu", "xla": False}


def sweep_folder(path: Path) -> Path:
    """Write a sweep with a cell of every state, drawn data, and documents that hold no measurement."""
    cells = tuple(
        SweepCell(
            number=number, name=name, table="t", state=state, reason=reason,
            options={"model": name, "num_gpus": "2", "batch_size": "8", **OPTIONS.get(name, {})},
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
        Sweep(title="t", origin="t.toml", matrix="", backend="cpu", cells=cells, defaults=DEFAULTS),
    )
    return path


def measured(path: Path) -> dict[str, Measurement]:
    folders = RunFolders()
    found = read([str(path)], read_run=folders.run, read_json=folders.document)
    assert (found.unread, found.passed) == ((), 0)
    names = {f"{path / MANIFEST}#{number}": name for number, name in enumerate(STATES, 1)}
    by_name = {names.get(one.source) or Path(one.source).name: one for one in found.measurements}
    assert len(by_name) == len(found.measurements)
    return by_name


def test_every_cell_is_there_once_with_its_state_and_reason(tmp_path: Path) -> None:
    found = measured(sweep_folder(tmp_path))
    assert {name: one.status for name, one in found.items()} == {
        "ran": "complete", "died-before-it-began": "failed", "died-later": "failed", "never": "failed",
        "refused": "refused", "not-here": "left_out", "later": "pending", "../../outside": "failed",
    }  # fmt: skip
    for name, (_, reason) in STATES.items():
        if name not in ("ran", "died-later"):
            assert found[name].images_per_sec is None
            assert found[name].reason == (reason or "not run yet: gputopo sweep --resume continues")
            assert (found[name].n_gpus, found[name].batch_per_gpu) == (2, 8)


def test_what_did_not_run_has_the_conditions_of_its_options_and_of_their_defaults(tmp_path: Path) -> None:
    found = measured(sweep_folder(tmp_path))
    conditions = {
        name: (one.task, one.data, one.dataset, one.distortions, one.precision, one.xla)
        for name, one in found.items()
    }
    assert conditions["later"] == ("train", "synthetic", None, None, "fp32", False)
    assert conditions["refused"] == ("forward", "synthetic-cpu", None, None, "fp16", False)
    assert conditions["not-here"] == ("train", "real", "cifar10", False, "fp32", True)


def test_what_was_not_run_is_no_failure_and_stands_in_the_table_with_its_reason(tmp_path: Path) -> None:
    study = study_of(measured(sweep_folder(tmp_path)).values(), title="t")
    assert study.headline.startswith("Interrupted: 1 of 8 cells of a sweep has not run.")
    document = study_document(study)
    assert "3 cells of a sweep were not run." in document.summary
    heads = [block.heads for part in document.sections for block in part.blocks if isinstance(block, Table)]
    assert any("CPU devices" in one for one in heads)
    assert not any("GPUs" in one for one in heads)
    runs = next(part.blocks[0] for part in document.sections if part.title == "All runs")
    assert isinstance(runs, Table)
    rows = {row[0].partition(",")[0]: row for row in runs.rows}
    assert {"refused", "left out", "to run"} <= {cell for row in rows.values() for cell in row}
    assert STATES["not-here"][1] in rows["not-here"]
    only = [one for one in measured(tmp_path).values() if not one.is_run]
    assert not study_of(only, title="t").has_failed
    assert study.has_failed


def test_a_manifest_that_is_given_twice_counts_once(tmp_path: Path) -> None:
    cells = [one for one in measured(sweep_folder(tmp_path)).values() if not one.is_run]
    copies = [msgspec.structs.replace(one, source="copy") for one in cells]
    assert len(study_of([*cells, *copies], title="t").figures.cells) == len(cells)
    assert all(len(cell.runs) == 1 for cell in study_of([*cells, *copies], title="t").figures.cells)


def test_the_short_runs_of_a_screen_are_of_the_machine_of_its_folder(tmp_path: Path) -> None:
    box = read_bundled("7gforce")
    for folder in ("screen/screen/alone-0-1", "run"):
        run = tmp_path / folder
        run.mkdir(parents=True)
        schema.write(run / "result.json", summarise(list(stream(cpu_devices(1), InventedRun(1).steps(20)))))
    for folder in ("screen", "run"):
        schema.write(tmp_path / folder / "machine.json", box)
    folders = RunFolders()
    found = read([str(tmp_path)], read_run=folders.run, read_json=folders.document)
    assert len({one.machine for one in found.measurements}) == 1
    assert None not in {one.machine for one in found.measurements}


def test_a_measurement_has_the_unit_of_its_run() -> None:
    result = summarise(stream(cpu_devices(1), InventedRun(1).steps(20)))
    assert of_result(msgspec.structs.replace(result, unit="examples"), source="x").unit == "examples"


def test_one_bad_byte_in_the_events_of_a_run_is_a_line_of_its_own(tmp_path: Path) -> None:
    events = b"".join(map(encode_line, stream(cpu_devices(1), InventedRun(1).steps(20))))
    line = events.index(b"\n", len(events) // 2) + 1
    for name, data in (("good", events), ("bad", events[:line] + b"\xff" + events[line + 1 :])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "events.jsonl").write_bytes(data)
    folders = RunFolders()
    found = read([str(tmp_path)], read_run=folders.run, read_json=folders.document)
    assert (len(found.measurements), len(found.unread)) == (1, 1)
    assert str(tmp_path / "bad") in found.unread[0][1]


@pytest.mark.parametrize("damage", [b"\xff", b"\0"])
def test_damaged_events_beside_a_result_are_a_line_of_their_own_and_the_result_is_used(
    damage: bytes, tmp_path: Path
) -> None:
    made = list(stream(cpu_devices(1), InventedRun(1).steps(20)))
    events = b"".join(map(encode_line, made))
    (tmp_path / "events.jsonl").write_bytes(events[:-9] + damage + events[-8:])
    (tmp_path / "result.json").write_bytes(schema.encode(summarise(made)))
    folders = RunFolders()
    found = read([str(tmp_path)], read_run=folders.run, read_json=folders.document)
    assert (len(found.measurements), found.unread) == (1, ())
    ((_, why),) = folders.damaged
    assert f"events.jsonl, line {len(made)}, is damaged: its run is shown by its result.json" in why


def test_a_document_of_a_newer_gputopo_is_not_read_and_says_so(tmp_path: Path) -> None:
    for kind in ("result", "study", "sweep"):
        (tmp_path / f"{kind}.json").write_text(f'{{"schema": "gputopo.{kind}/9"}}')
    folders = RunFolders()
    (tmp_path / "in").mkdir()
    (tmp_path / "result.json").rename(tmp_path / "in" / "result.json")
    found = read([str(tmp_path)], read_run=folders.run, read_json=folders.document)
    assert len(found.unread) == 3
    assert all("/9" in why for _, why in found.unread)
