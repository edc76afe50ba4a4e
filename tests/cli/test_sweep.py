"""`gputopo sweep`: cells of a matrix with a worker that only pretends, and once with the real core."""

import csv
import fcntl
import os
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import msgspec
import pytest

from gputopo.cli import run_command
from gputopo.launch import runs_home
from gputopo.runs import BoxHistory
from gputopo.sweeps import PRESETS
from gputopo.values import schema
from gputopo.values.run.events import RunStarted, read_events
from gputopo.values.run.several_runs import BY_TIME, FOLDER, Sweep
from gputopo.values.run.spec import RunSpec
from gputopo.values.run.verdict import Expected
from tests.cli.conftest import THEN_BEHAVE, ByName, Call
from tests.cli.trained import without_a_gpu
from tests.launch.data.records import framed

MATRIX = """
title = "Two models"
seconds = 1
[[matrix]]
table = "models"
model = ["trivial", "lenet"]
variable_update = ["parameter_server", "replicated"]
ps = [false, "cpu"]
"""
SMALL_MATRIX = MATRIX.replace(', "replicated"', "")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gputopo.launch.jobs.sweep_course.LOAD_S", 0.0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "m.toml"
    path.write_text(MATRIX)
    return path


def expected_in(folder: Path) -> Expected:
    """Return the speed that a run in this folder was judged beside."""
    with (folder / "events.jsonl").open("rb") as lines:
        started = next(one for one in read_events(lines, origin="events") if isinstance(one, RunStarted))
    assert started.known is not None
    assert started.known.expected is not None
    return started.known.expected


def swept(text: str) -> Sweep:
    return schema.decode(text, Sweep, origin="stdout")


def test_a_matrix_runs_and_what_the_rules_refuse_stays_with_the_reason(
    call: Call, without_gpu: None, worker: ByName, file: Path, tmp_path: Path
) -> None:
    worker("works")
    done = call("sweep", "--matrix", file, "--output", tmp_path / "out", "--json")
    assert done.code == 0, done.err
    found = swept(done.out)
    assert [cell.state for cell in found.cells] == ["done", "done", "done", "refused"] * 2
    assert "--ps cpu cannot be combined with --variable-update replicated" in (found.cells[3].reason or "")
    assert found.says == ("No NVIDIA device: cells run on logical CPU devices, which share all cores.",)
    assert (tmp_path / "out" / "sweep.json").read_text() == done.out
    shown = call("report", tmp_path / "out", "--format", "csv").out
    spoken = {
        tuple(row[name] for name in ("data", "precision", "xla")) for row in csv.DictReader(StringIO(shown))
    }
    assert spoken == {("synthetic", "fp32", "0")}  # of those that ran, and of those that did not
    assert "cell 6 of 6: models, lenet, variable_update replicated: 40.0 images/sec" in done.err
    remembered = [one.result.spec["model"] for one in BoxHistory().past()]
    assert remembered == ["lenet"] * 3 + ["trivial"] * 3
    table = call("sweep", "--resume", tmp_path / "out")
    assert "8 cells: 6 done, 2 refused" in " ".join(table.out.split())
    assert "Cells 4,8 refused:" in table.out
    assert "cell 1 of" not in table.err  # nothing ran again


def test_a_matrix_of_options_is_one_of_a_file_and_goes_on_as_such(
    call: Call, without_gpu: None, worker: ByName, tmp_path: Path
) -> None:
    worker("works")
    typed = ("--model", "lenet,trivial", "--num-gpus", "1,2", "--batch-size", "32", "--seconds", "2s")
    done = call("sweep", *typed, "--output", tmp_path / "out", "--json")
    assert done.code == 0, done.err
    found = swept(done.out)
    assert found.matrix == (
        'seconds = 2.0\n[matrix]\nmodel = ["lenet", "trivial"]\nnum_gpus = [1, 2]\nbatch_size = [32]\n'
    )
    options = [(cell.options["model"], cell.options["num_gpus"], cell.counted_s) for cell in found.cells]
    assert options == [("lenet", "1", 2.0), ("lenet", "2", 2.0), ("trivial", "1", 2.0), ("trivial", "2", 2.0)]
    assert swept(call("sweep", "--resume", tmp_path / "out", "--json").out).cells == found.cells


def test_records_that_are_given_are_read_instead_of_drawn_ones(
    call: Call, without_gpu: None, worker: ByName, tmp_path: Path
) -> None:
    worker("works")
    records = tmp_path / "records"
    records.mkdir()
    file = tmp_path / "real.toml"
    file.write_text('[matrix]\nmodel = "trivial"\ndata_dir = "made:imagenet"\n')
    none = call("sweep", "--matrix", file, "--data-dir", records, "--dry-run", "--json")
    assert [cell.state for cell in swept(none.out).cells] == ["refused"]
    (records / "train-00000-of-00001").write_bytes(framed(b"an example"))
    done = call("sweep", "--matrix", file, "--data-dir", records, "--output", tmp_path / "out", "--json")
    assert done.code == 0, done.err
    (cell,) = swept(done.out).cells
    spec = schema.decode((tmp_path / "out" / cell.folder / "spec.json").read_bytes(), RunSpec, origin="")
    assert (cell.state, spec.data.folder) == ("done", str(records))
    assert not (tmp_path / "out" / "data").exists()


FAILS_TO_DRAW = """
import os, sys
if {}:
    os.makedirs(sys.argv[2])
    open(sys.argv[2] + "/data_batch_1.bin", "wb").write(b"an image")
sys.exit("gputopo: Directory not empty\\n  another folder") if not {} else sys.exit(3)
"""


@pytest.mark.parametrize("is_there", [True, False])
def test_images_that_a_killed_sweep_went_on_drawing_are_used(
    call: Call, without_gpu: None, worker: Callable[..., None], tmp_path: Path, is_there: bool
) -> None:
    worker("works")
    worker(FAILS_TO_DRAW.format(is_there, is_there), module="gputopo")
    file = tmp_path / "real.toml"
    file.write_text('[matrix]\nmodel = "resnet20"\ndata_dir = "made:cifar10"\n')
    done = call("sweep", "--matrix", file, "--output", tmp_path / "out")
    assert done.code == (0 if is_there else 3), done.err
    assert ("cannot be generated: Directory not empty\n" in done.err) is not is_there


def test_images_that_cannot_be_generated_end_a_sweep_with_the_reason(
    call: Call, without_gpu: None, worker: Callable[..., None], tmp_path: Path
) -> None:
    worker('import sys; sys.exit("gputopo: Directory not empty")', module="gputopo")
    file = tmp_path / "real.toml"
    file.write_text('[matrix]\nmodel = "resnet20"\ndata_dir = "made:cifar10"\n')
    done = call("sweep", "--matrix", file, "--output", tmp_path / "out")
    assert (done.code, "cannot be generated: Directory not empty\n" in done.err) == (3, True)


# Notes its start, and stops the sweep if it is the second.
STOPS_SECOND = """
import os, signal, sys
run = os.path.dirname(sys.argv[1])
with open(f"{run}/../../../started", "a+") as log:
    log.write(os.path.basename(run) + "\\n")
    log.seek(0)
    number = len(log.readlines())
behaviour = "hangs" if number == 2 else "works"
if number == 2:
    os.kill(os.getppid(), signal.SIGTERM)
"""


def test_a_stopped_sweep_goes_on_with_the_same_command(
    call: Call, without_gpu: None, worker: ByName, file: Path, tmp_path: Path
) -> None:
    file.write_text(SMALL_MATRIX)
    worker(STOPS_SECOND + THEN_BEHAVE)
    done = call("sweep", "--matrix", file, "--output", tmp_path / "out")
    assert done.code == 143
    assert "1 done, 3 to run" in " ".join(done.out.split())
    assert f"gputopo sweep --resume {tmp_path / 'out'}" in done.err
    stopped = swept((tmp_path / "out/sweep.json").read_text())
    assert [cell.state for cell in stopped.cells] == ["done", "pending", "pending", "pending"]
    started = (tmp_path / "started").read_text().split()
    assert not (tmp_path / "out" / FOLDER / started[1]).exists()
    assert done.out.startswith("Interrupted: 3 of 4 cells have not run.")
    again = call("sweep", "--matrix", file, "--output", tmp_path / "out", "--json")
    assert again.code == 0, again.err
    assert swept(again.out).complete
    again_started = (tmp_path / "started").read_text().split()[2:]
    assert again_started[0] == started[1]
    assert len(again_started) == 3


# Leaves a copy of the sweep's folder as a kill in its second cell would.
LEAVES = f"""
import os, shutil, sys
run = os.path.dirname(sys.argv[1])
name, whole = os.path.basename(run), os.path.dirname(os.path.dirname(run))
if len(os.listdir(os.path.dirname(run))) == 2 and os.path.basename(whole) == "whole":
    left = shutil.copytree(whole, f"{{whole}}/../killed")
    open(f"{{left}}/{FOLDER}/{{name}}/events.jsonl", "w").write('{{"event": "run_sta')
behaviour = "works"
"""


def test_a_killed_sweep_that_is_resumed_has_the_cells_of_one_that_was_not_killed(
    call: Call, without_gpu: None, worker: ByName, file: Path, tmp_path: Path
) -> None:
    file.write_text(SMALL_MATRIX)
    worker(LEAVES + THEN_BEHAVE)
    whole = call("sweep", "--matrix", file, "--output", tmp_path / "whole", "--json")
    assert swept((tmp_path / "killed/sweep.json").read_text()).complete is False
    resumed = call("sweep", "--resume", tmp_path / "killed", "--json")
    cells, again = (
        [(cell.state, cell.options, cell.images_per_sec) for cell in swept(done.out).cells]
        for done in (whole, resumed)
    )
    assert again == cells
    assert {state for state, *_ in cells} == {"done"}


@pytest.mark.parametrize(
    ("ended_by", "asked", "left_s"),
    [(None, (), 90.0), ("SIGTERM", (), 90.0), (BY_TIME, (), 100.0), (None, ("--time-budget", "70"), 70.0)],
)
def test_a_pace_stays_and_a_time_budget_counts_until_it_ended_the_sweep_or_another_is_given(
    call: Call,
    without_gpu: None,
    file: Path,
    tmp_path: Path,
    ended_by: str | None,
    asked: tuple[str, ...],
    left_s: float,
) -> None:
    out = tmp_path / "out"
    assert (
        call("sweep", "--matrix", file, "--output", out, "--time-budget", "0.001", "--cool-down", "0.25").code
        == 0
    )
    killed = swept((out / "sweep.json").read_text())
    assert (killed.time_budget_s, killed.ended_by) == (0.001, BY_TIME)
    more = {"time_budget_s": 100.0, "seconds": 40.0, "budget_from_s": 30.0, "ended_by": ended_by}
    schema.write(out / "sweep.json", msgspec.structs.replace(killed, **more))
    found = swept(call("sweep", "--resume", out, *asked, "--dry-run", "--json").out)
    assert (found.budget_left_s, found.cool_down_s) == (left_s, 0.25)


def test_another_matrix_another_machine_and_a_taken_folder_are_refused(
    call: Call,
    on_scenario: ByName,
    without_gpu: None,
    worker: ByName,
    file: Path,
    tmp_path: Path,
) -> None:
    worker("works")
    out = tmp_path / "out"
    call("sweep", "--matrix", file, "--output", out, "--time-budget", "0.001")
    taken = call("sweep", "--matrix", file, "--output", out, "--order", "rounds")
    assert (taken.code, f"--resume {out}" in taken.err) == (2, True)
    file.write_text(MATRIX.replace("lenet", "alexnet"))
    changed = call("sweep", "--matrix", file, "--resume", out)
    assert (changed.code, "no longer the matrix of the sweep" in changed.err) == (2, True)
    on_scenario("four")
    moved = call("sweep", "--resume", out)
    assert (moved.code, "another machine" in moved.err) == (2, True)


def test_failed_cells_are_reported_and_run_again_on_request(
    call: Call, without_gpu: None, worker: ByName, file: Path, tmp_path: Path
) -> None:
    file.write_text(SMALL_MATRIX)
    worker("traceback")
    done = call("sweep", "--matrix", file, "--output", tmp_path / "out", "--fail-on", "error")
    assert (done.code, "4 failed" in " ".join(done.out.split())) == (1, True)
    cells = swept((tmp_path / "out/sweep.json").read_text()).cells
    assert all(cell.reason and cell.images_per_sec is None for cell in cells)
    worker("works")
    kept = call("sweep", "--resume", tmp_path / "out")
    assert (kept.code, "no cell could be run" in kept.err) == (3, True)
    again = call("sweep", "--resume", tmp_path / "out", "--retry-failed")
    assert (again.code, "4 done" in " ".join(again.out.split())) == (0, True)


def test_gpus_of_the_machine_stand_in_the_cells(
    call: Call, on_scenario: ByName, worker: ByName, tmp_path: Path
) -> None:
    on_scenario("four")
    worker("works")
    file = tmp_path / "pairs.toml"
    file.write_text('[matrix]\nmodel = "alexnet"\ngpus = "pairs-by-link"\nvariable_update = "replicated"\n')
    done = call("sweep", "--matrix", file, "--json", "--order", "random", "--seed", "7")
    assert done.code == 0, done.err
    found = swept(done.out)
    assert all(cell.state == "done" and len(cell.gpus) == 2 for cell in found.cells)
    assert [",".join(map(str, cell.gpus)) for cell in found.cells] == [c.options["gpus"] for c in found.cells]
    assert found.says == ("Cells run in random order, seed 7.",)
    assert found.backend == "gpu"


def test_a_cell_is_judged_beside_what_is_known_of_a_run_of_its_options(
    call: Call, on_scenario: ByName, worker: ByName, tmp_path: Path
) -> None:
    on_scenario("7gforce")
    worker("works")
    file = tmp_path / "one.toml"
    options = {"gpus": "0,1", "variable_update": "replicated", "all_reduce": "copy", "batch_size": 4}
    cells = "".join(f"{name} = {value!r}\n" for name, value in options.items())
    file.write_text(f'[matrix]\nmodel = "alexnet"\n{cells}')

    def expected_of_cell() -> Expected:
        home = runs_home(os.environ)
        before = set(home.glob("*"))
        assert call("sweep", "--matrix", file).code == 0
        (made,) = set(home.glob("*")) - before
        return expected_in(next((made / FOLDER).iterdir()))

    typed = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]
    first, second = expected_of_cell(), expected_of_cell()
    assert call("run", "--model", "alexnet", *typed, "--no-history", "--output", tmp_path / "run").code == 0
    assert first == expected_in(tmp_path / "run")
    assert first.source == "predicted by the plan"
    assert (second.source, second.images_per_sec) == ("an earlier run of this job on this machine", 40)


def test_a_broken_driver_never_sweeps_on_the_cpu_and_leaves_no_folder(
    call: Call, with_broken_driver: None, file: Path, tmp_path: Path
) -> None:
    done = call("sweep", "--matrix", file, "--output", tmp_path / "out")
    assert (done.code, "--cpu uses CPU devices" in done.err) == (3, True)
    assert not (tmp_path / "out").exists()


def test_two_at_once_in_one_folder_are_kept_apart(
    call: Call, without_gpu: None, worker: ByName, file: Path, tmp_path: Path
) -> None:
    worker("works")
    out = tmp_path / "out"
    assert call("sweep", "--matrix", file, "--output", out, "--time-budget", "0.001").code == 0
    lock = os.open(out, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    second = call("sweep", "--resume", out)
    os.close(lock)
    assert (second.code, "is writing to" in second.err) == (2, True)


@pytest.mark.parametrize("preset", PRESETS)
def test_no_cell_of_a_preset_is_refused(call: Call, on_scenario: ByName, preset: str) -> None:
    on_scenario("four")
    done = call("sweep", preset, "--dry-run", "--json", "--compare-pairs")
    assert done.code == 0, done.err
    found = swept(done.out)
    assert [cell.reason for cell in found.cells if cell.state == "refused"] == []
    assert any(cell.state == "pending" for cell in found.cells)


@pytest.mark.tensorflow
def test_on_logical_cpu_devices_each_cell_is_really_trained(tmp_path: Path) -> None:
    with without_a_gpu(tmp_path):
        words = "sweep --cpu --model trivial --batch-size 2 --num-gpus 1 --seconds 0.2s --output out"
        assert run_command(words.split()) == 0
    found = swept((tmp_path / "out/sweep.json").read_text())
    assert found.complete
    assert [cell.state for cell in found.cells] == ["done"]
    assert found.cells[0].images_per_sec
