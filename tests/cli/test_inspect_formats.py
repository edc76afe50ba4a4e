from pathlib import Path

import msgspec
import pytest

from gputopo.captures import bundled_names
from gputopo.values import schema
from gputopo.values.machine import Gpu, GpuProcess, Machine, Pcie, PowerW
from tests.cli.conftest import ByName, Call
from tests.kit.scenarios import SCENARIOS
from tests.report.exposition_grammar import read


def test_every_bundled_machine_can_be_shown_and_some_in_every_format(call: Call) -> None:
    names = bundled_names()
    for name in names:
        done = call("inspect", "--from", name)
        assert (done.code, done.err, done.out.count("\n") > 5) == (0, "", True), name
    for name in names[::6]:
        assert "GPU0" in call("inspect", "--from", name, "--topology").out
        for shown in ("markdown --all", "prometheus"):
            done = call("inspect", "--from", name, "--format", *shown.split())
            assert (done.code, done.err, done.out.count("\n") > 20) == (0, "", True), name


@pytest.mark.parametrize("scenario", ["dual_socket_4_4", "lost_gpu"])
def test_the_exposition_of_a_box_is_read_by_an_independent_parser(
    scenario: str, call: Call, on_scenario: ByName
) -> None:
    on_scenario(scenario)
    found = read(call("inspect", "--format", "prometheus").out)
    count = len(SCENARIOS[scenario].gpus)
    assert found["gputopo_gpus"].samples[0].value == count
    assert len(found["gputopo_gpu_info"].samples) == count
    assert len(found["gputopo_link_hop_level"].samples) == count * (count - 1) // 2


@pytest.mark.parametrize("shape", ["markdown", "prometheus", "json"])
@pytest.mark.parametrize("asked", [True, False])
def test_uuids_are_left_out_unless_asked_for(
    shape: str, asked: bool, call: Call, on_scenario: ByName
) -> None:
    on_scenario("dgx1")
    done = call("inspect", "--format", shape, *(["--identities"] if asked else []))
    assert ("GPU-00000001" in done.out) is (asked and shape in ("json", "prometheus"))


@pytest.mark.parametrize(
    ("shape", "asked", "named"),
    [("table", False, True), ("json", False, False), ("json", True, True), ("markdown", False, False)],
)
def test_users_are_on_ones_own_screen_and_in_nothing_that_is_passed_on(
    shape: str, asked: bool, named: bool, call: Call, tmp_path: Path
) -> None:
    process = GpuProcess(pid=7, kind="compute", name="python", user="erika", memory_mib=512)
    path = write(tmp_path, "box.json", Machine(source="live", gpus=(Gpu(index=0, processes=(process,)),)))
    more = [*([] if shape == "json" else ["--all"]), *(["--identities"] if asked else [])]
    done = call("inspect", "--from", path, "--format", shape, *more)
    assert "512" in done.out
    assert ("erika" in done.out) is named


def write(folder: Path, name: str, machine: Machine) -> Path:
    path = folder / name
    schema.write(path, machine)
    return path


@pytest.fixture
def two_readings(tmp_path: Path) -> tuple[Path, Path]:
    """Return a recording from before and one of now: of the second GPU the limit fell, and its link."""
    old = Machine(
        source="live",
        gpus=tuple(
            Gpu(index=n, pci_address=f"0000:0{n}:00.0", power_w=PowerW(limit=300.0), pcie=Pcie(width_now=16))
            for n in (0, 1)
        ),
    )
    changed = msgspec.structs.replace(old.gpus[1], power_w=PowerW(limit=250.0), pcie=Pcie(width_now=8))
    new = msgspec.structs.replace(old, gpus=(old.gpus[0], changed))
    return write(tmp_path, "old.json", old), write(tmp_path, "new.json", new)


def test_diff_with_itself_states_that_nothing_changed(call: Call, two_readings: tuple[Path, Path]) -> None:
    old, _ = two_readings
    assert "No difference." in call("inspect", "--from", old, "--diff", old).out
    assert "No difference." in call("inspect", "--from", old, "--diff", old, "--format", "markdown").out


def test_a_machine_does_not_differ_from_its_own_recording(
    call: Call, on_scenario: ByName, tmp_path: Path
) -> None:
    on_scenario("lost_gpu")
    recording = tmp_path / "machine.json"
    call("inspect", "--record", recording)
    assert "No difference." in call("inspect", "--diff", recording).out
