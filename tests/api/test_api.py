"""`import gputopo`: the functions of the Python API, beside the commands that they call."""

import json
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import gputopo
from gputopo.cli import run_command
from gputopo.runs import summarise
from gputopo.values import schema
from gputopo.values.machine import Machine
from tests.invented_runs import InventedRun, gpu_devices, stream
from tests.launch.forks import forking_python

ROOT = Path(__file__).parents[2]
TOUR = Path(__file__).with_name("tour.ipynb")


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUTOPO_HOME", str(tmp_path / "home"))


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    capsys.readouterr()
    run_command([*words, "--json"])
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_help_shows_every_public_name_with_its_parameters() -> None:
    for name in gputopo.__all__:
        assert name in dir(gputopo)
        assert getattr(gputopo, name).__doc__


def test_importing_the_package_loads_none_of_its_parts() -> None:
    code = "import gputopo, sys; print([m for m in sys.modules if m.startswith('gputopo.')])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "['gputopo.public_names']\n"


def test_an_inspection_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    found = gputopo.load("7gforce")
    assert (
        json.loads(schema.encode(found.machine)) == printed(capsys, "inspect", "--from", "7gforce")["machine"]
    )
    assert found.gpus[6].clocks_mhz.memory.max == 5005
    assert [one.id for one in found.findings if one.severity == "warning"] == ["pcie.slot_narrow"]


def test_an_inspection_shows_its_first_line_and_its_table() -> None:
    found = gputopo.load("7gforce")
    assert re.match(r"6 . GeForce GTX 1070 \+ 1 . GeForce GTX 1080: 1 fine", repr(found))
    assert "<td>GeForce GTX 1080</td>" in found._repr_html_()


def test_a_plan_and_a_result_show_the_first_line_of_their_command() -> None:
    assert re.match(r"GPUs 0,1, .*images/sec", repr(gputopo.plan("7gforce", "alexnet", gpus=[0, 1])))
    result = summarise(stream(gpu_devices(2), InventedRun(2).steps(30)))
    shown = repr(schema.decode(schema.encode(result), gputopo.Result, origin="a result"))
    assert re.fullmatch(r"[0-9.]+ images/sec ± [0-9.]+: alexnet on 2 GPUs, parameter_server, .*", shown)


@pytest.mark.parametrize("machine", ["7gforce", gputopo.load("7gforce"), gputopo.load("7gforce").machine])
def test_a_plan_is_that_of_the_command(
    machine: str | gputopo.Inspection | Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    found = gputopo.plan(machine, "alexnet", gpus=[0, 1], prefer_pix=True)
    words = ["plan", "--from", "7gforce", "--model", "alexnet", "--gpus", "0,1", "--prefer-pix"]
    choice = msgspec.convert(printed(capsys, *words)["choice"], dict[str, object])
    assert (found.gpus, found.images_per_sec) == ((0, 1), choice["images_per_sec"])
    assert found.env["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_a_wrong_argument_has_the_two_lines_of_the_command() -> None:
    with pytest.raises(gputopo.GputopoError) as wrong:
        gputopo.plan("7gforce", "alexnet", nmu_gpus=2)
    assert str(wrong.value).splitlines() == [wrong.value.what, wrong.value.hint]
    assert wrong.value.what == "there is no option '--nmu-gpus'"
    assert wrong.value.hint.startswith("did you mean --num-gpus?")
    with pytest.raises(gputopo.GputopoError, match="alexnett"):
        gputopo.plan("7gforce", "alexnett")
    with pytest.raises(gputopo.GputopoError, match="give a capture"):
        gputopo.load()


def test_runs_that_are_not_there_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(gputopo.GputopoError, match="there are no measurements"):
        gputopo.load_runs(tmp_path)


@pytest.mark.tensorflow
def test_the_notebook_shows_a_machine_a_plan_a_run_and_a_strategy(tmp_path: Path) -> None:
    environment = {"PYTHONPATH": str(ROOT), "GPUTOPO_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"}
    # The notebook loads TensorFlow itself; the worker of its run is a fork.
    code = (
        "import sys; from tests.api import notebook; _, file, sys.executable = sys.argv; notebook.main(file)"
    )
    with forking_python(tmp_path) as python:
        done = subprocess.run(
            [sys.executable, "-c", code, str(TOUR), python],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    shown = done.stdout.splitlines()
    assert any("'pcie.slot_narrow'" in line for line in shown)
    assert any(line.startswith("('complete', ") for line in shown)
    assert any(line.startswith("[('lenet', ") for line in shown)
    assert shown[-2] == "there is no option '--nmu-gpus'"


def test_a_recording_of_another_machine_is_planned_for_and_not_this_one(tmp_path: Path) -> None:
    box = gputopo.load("7gforce").machine
    recording = tmp_path / "other.json"
    schema.write(recording, msgspec.structs.replace(box, source="live"))
    loaded = gputopo.load(recording)
    assert loaded.machine.source == "live"
    for other in (loaded, loaded.machine):
        assert gputopo.plan(other, "alexnet", num_gpus=2).gpus == (0, 1)


def test_what_inspect_returned_is_planned_for_as_this_machine() -> None:
    here = gputopo.inspect()
    if here.gpus:
        pytest.skip("this machine has GPUs")
    with pytest.raises(gputopo.GputopoError, match="no GPU"):
        gputopo.plan(here, "alexnet", num_gpus=2)


def test_a_run_that_would_return_no_result_is_refused_before_it_trains() -> None:
    with pytest.raises(gputopo.GputopoError, match="returns one result, without --repeats"):
        gputopo.run("trivial", cpu=True, repeats=2)
    with pytest.raises(gputopo.GputopoError, match="returns one result, without --dry-run"):
        gputopo.run("trivial", cpu=True, dry_run=True)
