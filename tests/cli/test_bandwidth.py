import json
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from gputopo.cli import bandwidth as command
from gputopo.cli.bandwidth import BandwidthOptions, BandwidthReport, report_of
from gputopo.probes.session import watched
from gputopo.runs import BoxHistory
from gputopo.values import schema
from gputopo.values.bandwidth import Bandwidth, Failure, NotMeasured, Samples
from gputopo.values.ends import End
from gputopo.values.machine import Machine
from tests.cli.conftest import ByName, Call
from tests.invented_bandwidths import bandwidth_of, machine_with, pair

CAPTURES = Path(__file__).parents[3] / "shared/captures/bandwidth"
OnScenario = ByName
Measure = Callable[[Bandwidth], None]


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A file of `gputopo bandwidth --json` from a machine of four GPUs."""
    path = tmp_path / "bandwidth.json"
    path.write_text(schema.encode_pretty(report_of(machine_with(4), bandwidth_of(4), ())))
    return path


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measure:
    """Puts a bandwidth in the place of what a session would measure."""

    def put(bandwidth: Bandwidth) -> None:
        def measure_links(options: BandwidthOptions, machine: Machine) -> Bandwidth:
            return bandwidth

        monkeypatch.setattr(command, "measure_links", measure_links)

    return put


def refused(call: Call, *arguments: object) -> str:
    done = call("bandwidth", *arguments)
    assert (done.code, done.out) == (2, "")
    assert len(done.err.splitlines()) == 2
    return done.err


def test_a_file_is_read_and_judged_and_shown(call: Call, recorded: Path) -> None:
    done = call("bandwidth", "--from", recorded)
    assert (done.code, done.err) == (1, "")  # one of its copies corrupted data
    for words in ("Links, GB/s", "p2p.direct_slower_than_staged", "0.73 against 0.77"):
        assert words in done.out


def test_json_is_the_bandwidth_itself_with_the_machine_and_the_findings(call: Call, recorded: Path) -> None:
    done = call("bandwidth", "--from", recorded, "--json")
    document = json.loads(done.out)
    assert document["schema"] == "gputopo.bandwidth/1"
    assert document["machine"]["schema"] == "gputopo.machine/1"
    assert document["machine"]["bandwidth"] is None
    assert "p2p.direct_slower_than_staged" in {one["id"] for one in document["findings"]}
    whole = schema.decode(done.out, Bandwidth, origin="stdout")
    assert {(s.kind, s.source, s.destination) for s in whole.samples} == {
        (s.kind, s.source, s.destination) for s in bandwidth_of(4).samples
    }
    assert schema.decode(done.out, BandwidthReport, origin="stdout").machine is not None


def test_what_json_prints_can_be_read_again(call: Call, recorded: Path, tmp_path: Path) -> None:
    once = call("bandwidth", "--from", recorded, "--json").out
    (tmp_path / "again.json").write_text(once)
    assert call("bandwidth", "--from", tmp_path / "again.json", "--json").out == once


def test_findings_make_exit_code_1_where_that_is_asked_for(call: Call, recorded: Path) -> None:
    assert call("bandwidth", "--from", recorded, "--fail-on", "warning").code == 1
    fine = msgspec.structs.replace(bandwidth_of(2), samples=(pair(0, 1, 12.5),), failures=())
    recorded.write_text(schema.encode_pretty(report_of(machine_with(2), fine, ())))
    assert call("bandwidth", "--from", recorded, "--fail-on", "warning").code == 0


def test_corrupted_data_makes_exit_code_1_without_being_asked_for(
    call: Call, recorded: Path, measured: Measure, on_scenario: OnScenario
) -> None:
    wrong = Failure(
        kind="h2d", source=End("host"), destination=End("gpu:1"), reason="WRONG_DATA", says="1 word differs"
    )
    hung, none = msgspec.structs.replace(wrong, reason="TIMED_OUT"), ()
    for failures, code in (((wrong,), 1), ((hung,), 1), (none, 0)):
        bandwidth = msgspec.structs.replace(bandwidth_of(4), failures=failures)
        recorded.write_text(schema.encode_pretty(report_of(machine_with(4), bandwidth, ())))
        assert call("bandwidth", "--from", recorded).code == code
        assert call("bandwidth", "--from", recorded, "--json").code == code
        assert call("inspect", "--from", recorded).code == (failures == (wrong,))
    on_scenario("four")
    measured(Bandwidth(source="live", failures=(wrong,)))  # no number at all
    assert call("bandwidth").code == 1


def test_a_capture_without_any_bandwidth_is_refused_with_what_to_give(call: Call, tmp_path: Path) -> None:
    (tmp_path / "machine.json").write_text(schema.encode_pretty(machine_with(2)))
    said = refused(call, "--from", tmp_path / "machine.json")
    assert "has no bandwidth" in said
    assert "p2pBandwidthLatencyTest" in said


def test_options_that_cannot_be_are_refused_in_two_lines(call: Call) -> None:
    cases: list[tuple[list[str], str]] = [
        (["--quick", "--full"], "both mean --effort"),
        (["--from", "x", "--gpus", "0"], "--gpus"),
        (["--from", "x", "--soak", "10"], "--soak"),
        (["--soak", "10", "--full"], "combined with --effort"),
        (["--model", "alexnet"], "gputopo bench-reduction --model NAME"),
        (["--numa", "-1"], "0 to 9999"),
        (["--gpus", "0;1"], "0,1"),
        (["--from", "7gforce", "--all", "--json"], "--all is for the tables"),
        (["--matrices"], "write --all"),
        (["--effort", "1001"], "1 to 1000"),
        (["--effort", "lots"], "give quick, full, or the number of repeats"),
        (["--network", "--effort", "20"], "--effort 20 is for one host"),
    ]
    for arguments, words in cases:
        assert words in refused(call, *arguments)


def test_sizes_are_bytes_with_a_unit() -> None:
    cases: list[tuple[str, tuple[int, ...]]] = [
        ("64MiB", (64 << 20,)),
        ("1G,4K,4KiB", (4096, 1 << 30)),
        ("1024,16GiB", (1024, 16 << 30)),
    ]
    for text, sizes in cases:
        assert command.parse_sizes("--size", text) == sizes


def test_a_size_that_cannot_be_is_refused(call: Call) -> None:
    for text in ["", "64XB", "1023", "17GiB"]:
        assert "--size cannot be" in refused(call, "--size", text)


def test_the_matrices_are_shown_to_those_who_ask(call: Call) -> None:
    assert "Staged through the host, GB/s" not in call("bandwidth", "--from", "7gforce").out
    assert "Staged through the host, GB/s" in call("bandwidth", "--from", "7gforce", "--all").out


@pytest.mark.usefixtures("without_gpu")
def test_without_a_gpu_host_memory_is_measured_and_the_exit_code_is_3(call: Call) -> None:
    done = call("bandwidth", "--json")
    document = json.loads(done.out)
    assert done.code == 3
    assert {one["kind"] for one in document["samples"]} == {"host_memory"}
    assert any("GPU" in one["what"] for one in document["not_measured"])


def test_an_interrupted_session_prints_what_there_is_and_is_not_filed(
    call: Call, on_scenario: OnScenario, measured: Measure, own_home: Path
) -> None:
    on_scenario("four")
    left_out = NotMeasured(what="d2h gpu:1 -> host", reason="interrupted")
    measured(msgspec.structs.replace(bandwidth_of(4), complete=False, not_measured=(left_out,)))
    done = call("bandwidth", "--save", "--json")
    assert done.code == 130
    assert json.loads(done.out)["complete"] is False
    assert "interrupted" in done.err
    assert "not saved" in done.err
    assert not own_home.exists()


def test_gpus_in_use_are_reported_before_they_are_put_under_load(
    call: Call, on_scenario: OnScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_scenario("four+busy_process@1")
    monkeypatch.setattr(watched, "measure_watched", lambda *_, **__: bandwidth_of(4))
    done = call("bandwidth", "--json")
    assert "GPU 1 is in use by" in done.err
    assert done.err.count("in use") == 1
    busy = [one for one in json.loads(done.out)["findings"] if one["id"] == "gpu.busy"]
    assert [one["subject"] for one in busy] == ["gpu:1"]
    assert "in use" not in call("bandwidth", "--gpus", "0,2", "--json").err


def test_a_capture_that_ends_early_is_no_interruption_of_ours(call: Call, tmp_path: Path) -> None:
    (tmp_path / "early.txt").write_text(
        "Running host_to_device_memcpy_ce.\nmemcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)\n"
        "           0\n 0     12.50\n\n"
        "Running device_to_host_memcpy_ce.\n[CUDA_ERROR_UNKNOWN] unknown error\n"
    )
    done = call("bandwidth", "--from", tmp_path / "early.txt", "--save")
    assert done.code == 1
    assert "The capture ends early" in done.out
    assert "not saved: a capture that ends early" in done.err
    assert "interrupted" not in done.out + done.err


def test_a_session_that_reached_no_gpu_is_not_filed(
    call: Call, on_scenario: OnScenario, measured: Measure, own_home: Path
) -> None:
    on_scenario("four")
    measured(msgspec.structs.replace(bandwidth_of(4), samples=(), failures=()))
    done = call("bandwidth", "--save")
    assert done.code == 3
    assert "not saved: no GPU was measured" in done.err
    assert not own_home.exists()


def test_a_driver_that_ends_the_measurement_makes_exit_code_3(
    call: Call, on_scenario: OnScenario, measured: Measure
) -> None:
    on_scenario("four")
    left_out = NotMeasured(what="d2h gpu:1 -> host", reason="cuMemAlloc of GPU 1 did not return")
    measured(msgspec.structs.replace(bandwidth_of(4), complete=False, not_measured=(left_out,)))
    done = call("bandwidth")
    assert done.code == 3
    assert "the driver ended the measurement" in done.err
    assert "d2h gpu:1 -> host" in done.out


def test_what_was_saved_decides_the_plan_of_this_machine_and_its_date_is_reported(
    call: Call, on_scenario: OnScenario, measured: Measure
) -> None:
    on_scenario("four")
    before = call("plan", "--model", "alexnet", "--num-gpus", 2)
    assert "measured" not in before.out + before.err
    samples = tuple(
        pair(a, b, 40.0 if {a, b} == {1, 3} else 10.0) for a in range(4) for b in range(4) if a != b
    )
    measured(msgspec.structs.replace(bandwidth_of(4), samples=samples, failures=()))
    saved = call("bandwidth", "--save")
    assert saved.code == 0
    assert "saved in" in saved.err
    done = call("plan", "--model", "alexnet", "--num-gpus", 2)
    assert re.search(r"GPUs +1,3", done.out)
    assert "measured 40.0 GB/s, direct" in done.out
    assert "2026-11-18 11:06 UTC" in done.err
    assert "2026-11-18 11:06 UTC" in " ".join(done.out.split())
    without = call("plan", "--model", "alexnet", "--num-gpus", 2, "--no-history")
    assert (without.out, without.err) == (before.out, before.err)


def test_a_capture_is_planned_without_what_was_saved_of_this_machine(
    call: Call, on_scenario: OnScenario, measured: Measure, tmp_path: Path
) -> None:
    on_scenario("four")
    measured(bandwidth_of(4))
    call("bandwidth", "--save")
    call("inspect", "--record", tmp_path / "machine.json")
    done = call("plan", "--model", "alexnet", "--from", tmp_path / "machine.json")
    assert "measured" not in done.out + done.err


def test_a_damaged_history_is_reported_and_the_plan_is_made(
    call: Call, on_scenario: OnScenario, own_home: Path
) -> None:
    on_scenario("four")
    own_home.mkdir()
    (own_home / "history.sqlite").write_bytes(b"\x00garbage" * 600)
    done = call("plan", "--model", "alexnet")
    assert done.code == 0
    assert len(done.err.splitlines()) == 1
    assert "is damaged" in done.err


def test_the_baseline_is_asked_for_before_anything_is_measured(
    call: Call, on_scenario: OnScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure_links(options: BandwidthOptions, machine: Machine) -> Bandwidth:
        raise AssertionError("measured without a baseline")

    monkeypatch.setattr(command, "measure_links", measure_links)
    on_scenario("four")
    assert "--save" in refused(call, "--baseline")


def test_only_changes_are_reported_and_a_loss_makes_exit_code_1(
    call: Call, on_scenario: OnScenario, measured: Measure
) -> None:
    on_scenario("four")
    old = msgspec.structs.replace(bandwidth_of(4), failures=())
    measured(old)
    call("bandwidth", "--save")
    same = call("bandwidth", "--baseline", "--fail-on", "warning")
    assert same.code == 0
    assert "nothing changed beyond noise" in same.out
    slow = tuple(
        msgspec.structs.replace(s, median_gb_per_s=3.0) if s == pair(0, 1, 11.3) else s for s in old.samples
    )
    measured(msgspec.structs.replace(old, samples=slow))
    done = call("bandwidth", "--baseline", "--fail-on", "warning")
    assert done.code == 1
    assert "3.00 GB/s, was 11.3" in " ".join(done.out.split())
    assert "gpu:2 to gpu:3" not in done.out
    assert call("bandwidth", "--baseline", "--fail-on", "error").code == 0
    document = json.loads(call("bandwidth", "--baseline", "--json").out)
    assert document["schema"] == "gputopo.bandwidth_diff/1"
    assert [one["is"] for one in document["changes"]] == [3.0]


def test_data_that_was_corrupted_then_and_now_is_no_change_and_fails_all_the_same(
    call: Call, on_scenario: OnScenario, measured: Measure
) -> None:
    on_scenario("four")
    measured(bandwidth_of(4))
    call("bandwidth", "--save")
    done = call("bandwidth", "--baseline")
    assert done.code == 1
    assert "nothing changed beyond noise" in done.out
    assert "corrupted data" in done.err


def test_after_a_gpu_was_lost_or_added_the_others_are_compared(call: Call, tmp_path: Path) -> None:
    whole, fewer = tmp_path / "whole.json", tmp_path / "fewer.json"
    machine = machine_with(4)
    left = tuple(
        msgspec.structs.replace(gpu, index=index)
        for index, gpu in enumerate(gpu for gpu in machine.gpus if gpu.index != 1)
    )
    of_two = msgspec.structs.replace(machine, gpus=left, links=machine_with(3).links)
    before = Bandwidth(source="live", samples=Samples((pair(0, 1, 5.0), pair(2, 3, 12.0), pair(0, 2, 9.0))))
    after = Bandwidth(source="live", samples=Samples((pair(1, 2, 6.0), pair(0, 1, 9.0))))
    whole.write_text(schema.encode_pretty(report_of(machine, before, ())))
    as_fast = msgspec.structs.replace(after, samples=(pair(1, 2, 12.0), pair(0, 1, 9.0)))
    fewer.write_text(schema.encode_pretty(report_of(of_two, as_fast, ())))
    assert call("bandwidth", "--from", whole, "--save").code == 0
    assert call("bandwidth", "--from", fewer, "--baseline", "--fail-on", "warning").code == 1
    fewer.write_text(schema.encode_pretty(report_of(of_two, after, ())))
    done = call("bandwidth", "--from", fewer, "--baseline", "--fail-on", "error")
    assert done.code == 1
    assert "missing: GPU 1 (NVIDIA Test 1, 0000:02:00.0)" in done.err
    reported = " ".join(done.out.split())
    assert "p2p_direct gpu:1 to gpu:2: 6.00 GB/s, was 12.0" in reported
    assert "GPU 1 (NVIDIA Test 1, 0000:02:00.0) is missing" in reported
    assert "2 numbers compared" in reported
    assert "Not compared: 1 number of GPUs that only one of the two could measure." in reported
    assert call("bandwidth", "--from", fewer, "--save").code == 0
    assert call("bandwidth", "--from", fewer, "--baseline").err == ""
    again = call("bandwidth", "--from", whole, "--baseline", "--fail-on", "error")
    assert (again.code, again.err) == (0, "")


def test_a_capture_is_filed_under_its_machine(call: Call, recorded: Path, own_home: Path) -> None:
    assert call("bandwidth", "--from", recorded, "--save").code == 1  # as without --save: corrupted data
    found = BoxHistory(own_home).latest(machine_with(4))
    assert found is not None
    assert found.bandwidth.measured_at == bandwidth_of(4).measured_at


def test_a_capture_of_which_the_machine_is_not_known_is_not_filed(call: Call, recorded: Path) -> None:
    recorded.write_text(schema.encode_pretty(bandwidth_of(2)))
    done = call("bandwidth", "--from", recorded, "--save")
    assert done.code == 2
    assert "the machine cannot be identified" in done.err


def test_the_published_files_of_7gforce_give_the_verdict(call: Call) -> None:
    if not CAPTURES.is_dir():
        pytest.skip("the public captures are not beside this checkout")
    sources = [CAPTURES / "7gforce-p2pBandwidthLatencyTest_keras-multi-gpu.txt"]
    sources += sorted(CAPTURES.glob("7gforce-bandwidthTest_gpu_*"))
    arguments = [word for source in sources for word in ("--from", source)]
    document = json.loads(call("bandwidth", *arguments, "--from", "7gforce", "--json").out)
    ids = {one["id"] for one in document["findings"]}
    assert {"p2p.direct_slower_than_staged", "bandwidth.woke_up"} <= ids
    assert "bandwidth.local_slow" not in ids
