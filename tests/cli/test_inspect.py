import re
from pathlib import Path

import pytest

from gputopo.values import schema
from gputopo.values.finding import Inspection
from gputopo.values.machine import Contradiction, Gpu, Machine
from tests.cli.conftest import ByName, Call
from tests.kit import commands

TWO_GPUS = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\t0-7\nGPU1\tPHB\t X \t0-7\n"


def test_a_recording_reads_back_to_the_same_output(call: Call, on_scenario: ByName, tmp_path: Path) -> None:
    on_scenario("lost_gpu")
    recording = tmp_path / "machine.json"
    for shape in ("table", "json"):
        live = call("inspect", "--format", shape, "--record", recording)
        assert live.out.count("\n") > 5
        assert call("inspect", "--format", shape, "--from", recording) == live


def test_no_line_is_wider_than_80_columns_in_a_pipe(
    call: Call, on_scenario: ByName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    for scenario in ("7gforce", "lost_handle"):
        on_scenario(scenario)
        lines = call("inspect").out.splitlines()
        assert max(map(len, lines)) <= 80, scenario
        assert not any(line.endswith(" ") for line in lines), scenario


def test_columns_sets_the_width_of_a_pipe(
    call: Call, on_scenario: ByName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    on_scenario("dgx1")
    wide = call("inspect", "--all").out
    assert any("PCI address" in line and "Memory GiB" in line for line in wide.splitlines())
    assert 80 < max(map(len, wide.splitlines())) <= 160


def test_identities_keeps_uuids_in_the_json_and_in_the_recording(
    call: Call, on_scenario: ByName, tmp_path: Path
) -> None:
    on_scenario("dgx1")
    recording = tmp_path / "machine.json"
    shown = schema.decode(
        call("inspect", "--json", "--identities", "--record", recording).out, Inspection, origin="stdout"
    )
    kept = schema.decode(recording.read_bytes(), Machine, origin="recording")
    assert shown.machine == kept
    assert len({gpu.uuid for gpu in kept.gpus}) == 8
    assert all(gpu.uuid and gpu.uuid.startswith("GPU-") for gpu in kept.gpus)


def test_a_machine_without_an_nvidia_device_reports_it_and_is_fine(call: Call, without_gpu: None) -> None:
    done = call("inspect")
    assert done.code == 0
    assert done.out.startswith("No NVIDIA device on the PCI bus of this machine. 1 info.\n")


def test_a_broken_driver_is_reported_in_full_and_ends_with_3(call: Call, with_broken_driver: None) -> None:
    done = call("inspect", "--all", "--fail-on", "error")
    assert done.code == 3
    assert "driver.not_loaded" in done.out
    assert "0000:44:00.0" in done.out  # what the bus shows is printed nevertheless


@pytest.mark.parametrize(("severity", "code"), [("error", 0), ("warning", 1)])
def test_fail_on_looks_at_findings_as_severe_as_requested(
    severity: str, code: int, call: Call, tmp_path: Path
) -> None:
    said = (Contradiction(fact="links[0-1].hop", said={"a": "PIX", "b": "SYS"}),)
    recording = tmp_path / "machine.json"
    schema.write(recording, Machine(source="a + b", gpus=(Gpu(index=0), Gpu(index=1)), contradictions=said))
    assert call("inspect", "--from", recording, "--fail-on", severity).code == code


def test_two_captures_become_one_machine(call: Call, tmp_path: Path) -> None:
    first, second = tmp_path / "first.txt", tmp_path / "second.txt"
    first.write_text(TWO_GPUS)
    second.write_text(TWO_GPUS.replace("PHB", "SYS"))
    done = call("inspect", "--from", first, "--from", second)
    assert done.code == 0
    assert "PHB" in done.out
    assert "topology.contradiction" in done.out


def test_the_topology_comes_from_stdin_too() -> None:
    done = commands.run("-m", "gputopo", "inspect", "--topology", "--from", "-", given=TWO_GPUS)
    assert done.returncode == 0, done.stderr
    assert "GPU1  PHB   X     0-7" in done.stdout


def test_a_broken_driver_of_a_capture_is_a_finding_as_any_other(call: Call, tmp_path: Path) -> None:
    (tmp_path / "error.txt").write_text("Failed to initialize NVML: Driver/library version mismatch\n")
    words = ("inspect", "--from", str(tmp_path / "error.txt"))
    assert (call(*words).code, call(*words, "--fail-on", "error").code) == (0, 1)


def test_a_terminal_that_knows_ascii_only_is_written_to_all_the_same(tmp_path: Path) -> None:
    recording = tmp_path / "machine.json"
    schema.write(recording, Machine(source="live", gpus=(Gpu(index=0, name="NVIDIA Grün™"),)))
    command = ("-m", "gputopo", "inspect", "--from", str(recording))
    done = commands.run(*command, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0, done.stderr
    assert "Gr?n?" in done.stdout


@pytest.mark.parametrize(
    ("chosen", "gpus"),
    [("0-2,6", [0, 1, 2, 6]), ("0000:06:00.0,6", [1, 6]), ("2,2-3", [2, 3])],
)
def test_chosen_gpus_are_indices_ranges_or_addresses_and_only_these_are_counted(
    chosen: str, gpus: list[int], call: Call
) -> None:
    shown = call("inspect", "--from", "7gforce", "-i", chosen).out
    narrow = [index for index in gpus if index < 6]
    fine = ": 1 fine, " if 6 in gpus else ": "
    assert shown.startswith(f"{len(narrow)} \N{MULTIPLICATION SIGN} GeForce GTX 1070")
    assert fine in shown.partition("need")[0]
    assert re.findall(r"^GPU (\d)$", shown, re.MULTILINE) == list(map(str, gpus))
