import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gputopo import probes
from gputopo.probes import SessionRequest
from gputopo.runs import BoxHistory
from gputopo.values import schema
from gputopo.values.bandwidth import (
    Bandwidth,
    CopyRate,
    CopyRateKind,
    Failure,
    NotMeasured,
    Samples,
)
from gputopo.values.ends import End
from gputopo.values.machine import Gpu, Hop, Link, Machine
from tests.cli.conftest import ByName, Call
from tests.invented_bandwidths import bandwidth_of, machine_with, pair

OnScenario = ByName
Measure = Callable[[Bandwidth], list[SessionRequest]]


def write(path: Path, machine: Machine, bandwidth: Bandwidth) -> Path:
    """Write a machine with its bandwidth, as `inspect --record` and `--from` know it."""
    schema.write(path, msgspec.structs.replace(machine, bandwidth=bandwidth))
    return path


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A file of a machine of four GPUs with its bandwidth."""
    return write(tmp_path / "machine.json", machine_with(4), bandwidth_of(4))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measure:
    """Puts a bandwidth in the place of what a session would measure; returns what is asked of sessions."""

    def put(bandwidth: Bandwidth) -> list[SessionRequest]:
        requests: list[SessionRequest] = []

        def measure(machine: Machine, request: SessionRequest, *_: Any, **__: Any) -> Bandwidth:
            requests.append(request)
            return bandwidth

        monkeypatch.setattr(probes, "measure_watched", measure)
        return requests

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


def test_json_is_the_bandwidth_with_machine_and_findings_and_can_be_read_again(
    call: Call, recorded: Path, tmp_path: Path
) -> None:
    once = call("bandwidth", "--from", recorded, "--json").out
    document = json.loads(once)
    assert document["schema"] == "gputopo.bandwidth/1"
    assert document["machine"]["schema"] == "gputopo.machine/1"
    assert document["machine"]["bandwidth"] is None
    assert "p2p.direct_slower_than_staged" in {one["id"] for one in document["findings"]}
    whole = schema.decode(once, Bandwidth, origin="stdout")
    assert {(s.kind, s.source, s.destination) for s in whole.samples} == {
        (s.kind, s.source, s.destination) for s in bandwidth_of(4).samples
    }
    (tmp_path / "again.json").write_text(once)
    assert call("bandwidth", "--from", tmp_path / "again.json", "--json").out == once


def test_findings_make_exit_code_1_where_that_is_asked_for(call: Call, recorded: Path) -> None:
    assert call("bandwidth", "--from", recorded, "--fail-on", "warning").code == 1
    fine = msgspec.structs.replace(bandwidth_of(2), samples=(pair(0, 1, 12.5),), failures=())
    write(recorded, machine_with(2), fine)
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
        write(recorded, machine_with(4), bandwidth)
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


def test_sizes_are_bytes_with_a_unit(call: Call, on_scenario: OnScenario, measured: Measure) -> None:
    on_scenario("four")
    cases: list[tuple[str, tuple[int, ...]]] = [
        ("64MiB", (64 << 20,)),
        ("1G,4K,4KiB", (4096, 1 << 30)),
        ("1024,16GiB", (1024, 16 << 30)),
    ]
    for text, sizes in cases:
        requests = measured(bandwidth_of(4))
        call("bandwidth", "--size", text)
        assert [request.sizes for request in requests] == [sizes]


@pytest.mark.usefixtures("without_gpu")
def test_without_a_gpu_host_memory_is_measured_and_the_exit_code_is_3(call: Call) -> None:
    done = call("bandwidth", "--json")
    document = json.loads(done.out)
    assert done.code == 3
    assert {one["kind"] for one in document["samples"]} == {"host_memory"}
    assert any("GPU" in one["what"] for one in document["not_measured"])


ENDED = {"complete": False, "not_measured": (NotMeasured(what="d2h gpu:1 -> host", reason="interrupted"),)}
STUCK = {
    "complete": False,
    "not_measured": (NotMeasured(what="d2h gpu:1 -> host", reason="cuMemAlloc hung"),),
}
NOTHING: dict[str, Any] = {"samples": Samples(), "failures": ()}


@pytest.mark.parametrize(
    ("ending", "code", "said"),
    [
        (ENDED, 130, "interrupted; "),
        (STUCK, 3, "the driver ended the measurement"),
        (NOTHING, 3, "not saved: no GPU was measured"),
    ],
)
def test_a_session_that_did_not_come_to_its_end_is_printed_and_not_filed(
    ending: dict[str, Any],
    code: int,
    said: str,
    call: Call,
    on_scenario: OnScenario,
    measured: Measure,
    own_home: Path,
) -> None:
    on_scenario("four")
    measured(msgspec.structs.replace(bandwidth_of(4), **ending))
    done = call("bandwidth", "--save", "--json")
    assert done.code == code
    assert json.loads(done.out)["complete"] is ("samples" in ending)
    assert said in done.err
    assert "not saved" in done.err
    assert not (own_home / "history.sqlite").exists()


def test_gpus_in_use_are_reported_before_they_are_put_under_load(
    call: Call, on_scenario: OnScenario, measured: Measure
) -> None:
    on_scenario("four+busy_process@1")
    measured(bandwidth_of(4))
    done = call("bandwidth", "--json")
    assert "GPU 1 is in use by" in done.err
    assert done.err.count("in use") == 1
    busy = [one for one in json.loads(done.out)["findings"] if one["id"] == "gpu.busy"]
    assert [one["subject"] for one in busy] == ["gpu:1"]
    assert "in use" not in call("bandwidth", "--gpus", "0,2", "--json").err


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


def test_after_a_gpu_was_lost_the_others_are_compared(call: Call, tmp_path: Path) -> None:
    whole, fewer = tmp_path / "whole.json", tmp_path / "fewer.json"
    machine = machine_with(4)
    left = tuple(
        msgspec.structs.replace(gpu, index=index)
        for index, gpu in enumerate(gpu for gpu in machine.gpus if gpu.index != 1)
    )
    of_two = msgspec.structs.replace(machine, gpus=left, links=machine_with(3).links)
    before = Bandwidth(source="live", samples=Samples((pair(0, 1, 5.0), pair(2, 3, 12.0), pair(0, 2, 9.0))))
    after = Bandwidth(source="live", samples=Samples((pair(1, 2, 6.0), pair(0, 1, 9.0))))
    write(whole, machine, before)
    write(fewer, of_two, after)
    assert call("bandwidth", "--from", whole, "--save").code == 0
    done = call("bandwidth", "--from", fewer, "--baseline", "--fail-on", "error")
    assert done.code == 1
    assert "missing: GPU 1 (NVIDIA Test 1, 0000:02:00.0)" in done.err
    reported = " ".join(done.out.split())
    assert "p2p_direct gpu:1 to gpu:2: 6.00 GB/s, was 12.0" in reported
    assert "GPU 1 (NVIDIA Test 1, 0000:02:00.0) is missing" in reported
    assert "2 numbers compared" in reported
    assert "Not compared: 1 number of GPUs that only one of the two could measure." in reported


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


CARDS = tuple(Gpu(index=index, name="GeForce GTX 1070") for index in range(2))


PAIR = Machine(source="mine", gpus=CARDS, links=(Link(a=0, b=1, hop=Hop.PIX),))


def copied(kind: CopyRateKind, gb_per_s: float) -> CopyRate:
    """Return copies from the host to GPU 0, or from GPU 0 to GPU 1."""
    ends = (End("host"), End("gpu:0")) if kind == "h2d" else (End("gpu:0"), End("gpu:1"))
    return CopyRate(kind=kind, source=ends[0], destination=ends[1], median_gb_per_s=gb_per_s, bytes=10**8)


def with_copies(path: Path, *copies: CopyRate) -> Path:
    return write(path, PAIR, Bandwidth(source="x", samples=Samples(copies)))


@pytest.mark.parametrize(
    ("copies", "what"),
    [
        ((copied("p2p_direct", 90.0),), "90.0 GB/s gpu:0 to gpu:1 (direct), at most 15.8"),
        ((copied("h2d", 90.0),), "90.0 GB/s host to gpu:0"),
        ((copied("p2p_direct", 12.0), copied("bidirectional", 40.0)), "40.0 GB/s"),
    ],
)
def test_bandwidth_that_contradicts_physics_or_itself_is_not_planned_with(
    call: Call, tmp_path: Path, copies: tuple[CopyRate, ...], what: str
) -> None:
    file = with_copies(tmp_path / "machine.json", *copies)
    done = call("plan", "--from", file, "--model", "alexnet")
    assert (done.code, done.out) == (2, "")
    said, hint = done.err.splitlines()
    assert said.startswith("gputopo: the measured bandwidth is impossible or contradicts itself: ")
    assert what in said
    assert "measure again" in hint


def test_two_captures_that_contradict_one_another_are_not_planned_with(call: Call, tmp_path: Path) -> None:
    speeds = (12.0, 3.0, 11.5)
    files = [with_copies(tmp_path / f"{speed}.json", copied("h2d", speed)) for speed in speeds]
    asked = ("plan", "--model", "alexnet", "--from", files[0], "--from")
    assert "measured with 3.00 and with 12.0 GB/s" in call(*asked, files[1]).err
    assert call(*asked, files[2]).code == 0


def test_bandwidth_that_contradicts_physics_is_not_planned_with(call: Call, tmp_path: Path) -> None:
    copy = CopyRate(
        kind="p2p_direct", source=End("gpu:0"), destination=End("gpu:1"), median_gb_per_s=90.0, bytes=10**8
    )
    cards = tuple(Gpu(index=index, name="GeForce GTX 1070") for index in range(2))
    machine = Machine(source="mine", gpus=cards, links=(Link(a=0, b=1, hop=Hop.PIX),))
    file = write(tmp_path / "machine.json", machine, Bandwidth(source="x", samples=Samples((copy,))))
    done = call("plan", "--from", file, "--model", "alexnet")
    assert (done.code, done.out) == (2, "")
    said, hint = done.err.splitlines()
    assert said.startswith("gputopo: the measured bandwidth is impossible or contradicts itself: ")
    assert "90.0 GB/s gpu:0 to gpu:1 (direct), at most 15.8" in said
    assert "measure again" in hint


def test_a_capture_is_planned_without_what_was_saved_of_this_machine(
    call: Call, on_scenario: OnScenario, measured: Measure, tmp_path: Path
) -> None:
    on_scenario("four")
    measured(bandwidth_of(4))
    call("bandwidth", "--save")
    call("inspect", "--record", tmp_path / "machine.json")
    done = call("plan", "--model", "alexnet", "--from", tmp_path / "machine.json")
    assert "measured" not in done.out + done.err


def test_the_baseline_is_asked_for_before_anything_is_measured(
    call: Call, on_scenario: OnScenario, measured: Measure
) -> None:
    requests = measured(bandwidth_of(4))
    on_scenario("four")
    assert "--save" in refused(call, "--baseline")
    assert requests == []
