"""The report of a run, and of repeats."""

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from gputopo.captures import read_bundled
from gputopo.report import document_lines, document_text, failure_lines, repeats_document, run_document
from gputopo.runs import BoxHistory, combine_repeats, summarise, with_alone
from gputopo.topology import fingerprint
from gputopo.values.run.events import (
    Device,
    Evaluated,
    GpuSample,
    RankFailed,
    ReplicasCompared,
    RunStarted,
    Sample,
    Step,
    Traced,
)
from gputopo.values.run.result import AgainstPrediction, PartMs, Result
from gputopo.values.run.several_runs import Screen, ScreenDevice
from gputopo.values.run.verdict import HostSummary
from tests.invented_runs import BEGAN_S, InventedRun, Noise, cpu_devices, gpu_devices, step, stream
from tests.kit.drills.box import Trainer, slower
from tests.report.shown import assert_golden
from tests.runs.verdict.cards import always as readings
from tests.runs.verdict.cards import events

QUIET = Noise(own=0.01, stalls=0.0)
FAILURE = RankFailed(
    time_s=1.0,
    kind="killed",
    cause="the worker was killed by SIGKILL",
    remedy="look at dmesg",
    exit_code=137,
    last_lines=("[bold]one[/bold]", "two"),
)


def shown(result: Result, width: int = 80) -> str:
    return document_text(run_document(result), width)


def short(result: Result) -> list[str]:
    return document_text(run_document(result, verbose=False), 120).splitlines()


def gpu_result(count: int, slow: dict[int, float] | None = None) -> Result:
    return summarise(stream(gpu_devices(count), InventedRun(count, slow=slow or {}, noise=QUIET).steps(30)))


def of_steps(devices: tuple[Device, ...], marks: list[tuple[float, float]], seconds: float) -> Result:
    """The result of twenty steps that are all alike."""
    return summarise(stream(devices, [step(n, marks, seconds=seconds) for n in range(1, 20)]))


def steps_of(*levels: tuple[int, float], device_1: float = 1.0) -> list[Step]:
    """So many steps of so many seconds; device 1 takes `device_1` times as long."""
    seconds = [level for count, level in levels for _ in range(count)]
    return [step(n, [(0.0, took), (0.0, took * device_1)]) for n, took in enumerate(seconds, 1)]


def on_cpu(*levels: tuple[int, float], device_1: float = 1.0) -> Result:
    return summarise(stream(cpu_devices(2), steps_of(*levels, device_1=device_1)))


def busy(result: Result) -> Result:
    load = HostSummary(samples=2, other_cpu_share=0.9, busy="other programs used 90% of the CPU")
    return msgspec.structs.replace(result, host_load=load)


def with_cause() -> Result:
    trainer = Trainer(slow={2: slower(20)})
    return summarise(events(trainer, 100, {2: readings(memory_mhz=3800)}))


def rehearsal() -> Result:
    stand_ins = tuple(Device(tower=t, device=f"/CPU:{t}", gpu=t + 3, gpu_name="GTX 1070") for t in range(2))
    return summarise(stream(stand_ins, InventedRun(2, noise=QUIET).steps(20), rehearsal=True))


def failed_early() -> Result:
    return summarise([*list(stream(cpu_devices(2), InventedRun(2).steps(20)))[:12], FAILURE])


def half_sampled() -> Result:
    """GPU 0 reports all facts, GPU 1 its clocks only."""
    full = GpuSample(
        gpu=0, graphics_mhz=1700, memory_mhz=3800, temperature_c=71, power_w=120.6, pcie_gen=3, pcie_width=8
    )
    run = stream(gpu_devices(2), InventedRun(2, noise=QUIET).steps(30))
    seen = Sample(time_s=BEGAN_S + 11, gpus=(full,))
    return summarise(
        one for event in run for one in ((event, seen) if isinstance(event, Sample) else (event,))
    )


def with_options() -> Result:
    started, *rest = stream(cpu_devices(2), InventedRun(2).steps(30))
    assert isinstance(started, RunStarted)
    spec = {
        **started.spec,
        "asked": {"all_reduce": "xring", "async_": True, "trace": "3-4", "learning_rate": 0.25},
        "all_reduce": "ring",
        "grad_reduce": "mean",
        "precision": {"compute": "fp16", "loss_scale": 128.0, "xla": True},
    }
    return summarise([msgspec.structs.replace(started, spec=spec), *rest])


def predicted(verdict: str = "slower") -> Result:
    found = AgainstPrediction(
        verdict=verdict,
        says="what it says",
        images_per_sec=1560.0,
        images_per_sec_low=1400.0,
        images_per_sec_high=1700.0,
        measured=1300.0,
        parts={"compute": PartMs(100.0, 101.0), "weights": PartMs(10.0, 20.0), "rest": PartMs(0.0, 40.0)},
    )
    return msgspec.structs.replace(gpu_result(2), prediction=found)


def evaluated() -> Result:
    some = Traced(time_s=1.0, path="/t", steps=(4, 5, 6, 9), seconds=0.75)
    one = Traced(time_s=1.0, path="/t", steps=(2,), seconds=0.75)
    judged = Evaluated(time_s=1.0, examples=50, top1=0.5, top5=0.75, loss=1.0, seconds=1.0)
    return msgspec.structs.replace(predicted(), traces=(some, one), evaluations=(judged,))


def of_input() -> Result:
    result = summarise(stream(cpu_devices(2), InventedRun(2).steps(3)))
    return msgspec.structs.replace(result, spec={**result.spec, "task": "input"})


def unlike_peers() -> Result:
    devices = (*gpu_devices(2), Device(tower=2, device="/GPU:2", gpu=2, gpu_name="GTX 1080"))
    noise = Noise(common=0.05, own=0.01, stalls=0.0)
    return summarise(stream(devices, InventedRun(3, noise=noise).steps(20)))


def unproven() -> Result:
    steps = InventedRun(2, slow={1: 0.25}, noise=Noise(own=0.3)).steps(20)
    return summarise(stream(gpu_devices(2), steps))


REPORTS: dict[str, Callable[[], Result]] = {
    "slow": lambda: gpu_result(4, {2: 0.4}),
    "slow with its cause": with_cause,
    "slow and failed": lambda: msgspec.structs.replace(
        gpu_result(4, {2: 0.4}), failure=FAILURE, status="failed"
    ),
    "even": lambda: gpu_result(4),
    "of one GPU": lambda: gpu_result(1),
    "on the CPU": lambda: of_steps(cpu_devices(2), [(0.02, 0.08), (0.0, 0.2)], 0.25),
    "costs": lambda: of_steps(gpu_devices(2), [(0.0, 0.1), (0.0, 0.125)], 0.135),
    "not proven": unproven,
    "without a peer": unlike_peers,
    "rehearsal": rehearsal,
    "failed early": failed_early,
    "sampled in part": half_sampled,
    "with options": with_options,
    "evaluated": evaluated,
    "of the input": of_input,
    "on a busy host": lambda: busy(on_cpu((40, 0.1), device_1=1.3)),
}


@pytest.mark.parametrize("name", REPORTS)
def test_the_report_is_as_it_was(name: str) -> None:
    """All figures, then the short form."""
    result = REPORTS[name]()
    text = "\n".join([*failure_lines(result), shown(result, 120), *short(result), ""])
    assert_golden(f"run {name}", text)


def test_the_report_fits_80_columns_and_hides_nothing() -> None:
    text = shown(gpu_result(16, {15: 0.3}))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for device in gpu_devices(16):
        row = " ".join(re.findall(rf"^{device.label} .*$", text, re.MULTILINE))
        assert "1700 (85)" in row
        assert "3800 (95)" in row
        assert row.split()[1] == str(device.gpu)


def test_speeds_that_are_large_and_long_names_still_fit() -> None:
    steps = [step(n, [(0.00001, 0.00005)] * 8, seconds=0.0001) for n in range(1, 20)]
    text = shown(summarise(stream(gpu_devices(8, "NVIDIA A100-SXM4-80GB [engineering sample]"), steps)))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert re.search(r"^ +\[engi", text, re.MULTILINE)  # folded, and not taken for markup


def test_only_what_is_slow_is_red() -> None:
    def red(result: Result) -> set[str]:
        lines = document_lines(run_document(result), 80)
        return {text.strip() for line in lines for text, style in line if "red" in style}

    slow = red(gpu_result(4, {2: 0.4}))
    assert "GPU 2" in slow
    assert "GPU 1" not in slow
    assert red(gpu_result(4)) == set()


def test_a_run_of_which_nothing_is_known_can_be_shown() -> None:
    assert "Failed: the events of the run stop" in shown(summarise([]))


@pytest.mark.parametrize(
    ("mode", "difference", "says"),
    [
        ("replicated", 0.5, "differ by 0.5 at most, and must be equal"),
        ("independent", 0.5, "so they differ"),
    ],
)
def test_differences_between_copies_are_judged_by_the_mode(mode: str, difference: float, says: str) -> None:
    begun = list(stream(cpu_devices(2), InventedRun(2).steps(3)))
    result = summarise([*begun, ReplicasCompared(time_s=1.0, largest_difference=difference)])
    result = msgspec.structs.replace(result, spec={**result.spec, "variable_update": mode})
    assert says in " ".join(shown(result, width=120).split())
    assert ("do not trust this training" in "\n".join(short(result))) == ("must be equal" in says)


def test_the_speed_alone_comes_from_a_screen_of_the_same_job_on_this_machine(tmp_path: Path) -> None:
    machine, history = read_bundled("7gforce"), BoxHistory(tmp_path)
    result = gpu_result(2)
    screen = Screen(
        model="alexnet",
        batch_size=8,
        backend="gpu",
        says=(),
        devices=tuple(ScreenDevice(number=n, word="even", says="", alone=90.0 - n) for n in range(2)),
        runs=(),
        seconds=1.0,
        quick=False,
        complete=True,
        fingerprint=fingerprint(machine),
    )
    found = with_alone(result, machine, [(Path("/runs/1"), screen)], history)
    assert [row.alone_images_per_sec for row in found.devices] == [90.0, 89.0]
    text = shown(found, width=160)
    assert re.search(r"^GPU 0 .* 90.0 ", text, re.MULTILINE)
    assert "images/sec of each GPU alone: measured in /runs/1" in text
    for other in ({"batch_size": 9}, {"fingerprint": "another"}):
        of_another = msgspec.structs.replace(screen, **other)
        assert with_alone(result, machine, [(Path("/runs/1"), of_another)], history) == result


def test_a_slower_first_part_is_reported_with_its_length_and_the_speed_is_without_it() -> None:
    lines = short(on_cpu((8, 0.3), (40, 0.1)))
    assert lines[0].startswith("160.0 images/sec ± 0.00: alexnet on 2 CPU devices")
    assert "warm-up  the first 8 steps were slower, for 2.40 s; the speed excludes them" in lines
    assert not any("warm-up" in line or "Slowed" in line for line in short(on_cpu((40, 0.1))))


def test_a_faster_first_part_is_reported_as_a_slow_down_with_its_time() -> None:
    lines = short(on_cpu((22, 0.391), (28, 0.439)))
    assert lines[2:4] == [
        "Slowed from 40.9 to 36.4 images/sec after step 22 (11% slower).",
        "CPU devices share the cores: differences between them are not judged.",
    ]
    faster = short(on_cpu((22, 0.439), (28, 0.391)))
    assert faster[2] == "Sped up from 36.4 to 40.9 images/sec after step 22 (12% faster)."


def test_cpu_devices_have_a_verdict_only_if_a_difference_is_proven() -> None:
    proven = short(on_cpu((40, 0.1), device_1=1.3))
    assert any(line.startswith("! CPU device 1 computes 23% slower than its peers") for line in proven)
    assert any(line.startswith("CPU 1 ") and line.endswith("! slow 23%") for line in proven)
    assert not any("share the cores" in line for line in proven)


@pytest.mark.parametrize(
    ("noise", "count"),
    [
        (Noise(common=0.15, own=0.05), 300),  # lenet: 20 s
        (Noise(common=0.05, own=0.02, stalls=0.0), 30),  # resnet20: until the speed is known
        (Noise(common=0.02, own=0.01, stalls=0.0, drift=0.02, memory=0.9), 12),  # alexnet
    ],
    ids=["lenet", "resnet20", "alexnet"],
)
def test_no_run_on_idle_cpu_devices_ends_in_a_cannot_tell(noise: Noise, count: int) -> None:
    for seed in range(8):
        steps = InventedRun(2, noise=noise, seed=seed).steps(count)
        lines = short(summarise(stream(cpu_devices(2), steps)))
        assert re.match(r"[\d.]+ images/sec ± [\d.]+: alexnet on 2 CPU devices", lines[0])
        assert "CPU devices share the cores: differences between them are not judged." in lines
        assert not re.search("annot tell|not significant|--num-batches|RELIABLE", "\n".join(lines))


def test_of_a_busy_host_the_first_line_says_that_the_speed_is_not_reliable() -> None:
    result = busy(on_cpu((3, 0.1), device_1=1.3))
    lines = short(result)
    assert lines[0] == "123.1 images/sec, NOT RELIABLE: other programs used 90% of the CPU."
    assert lines[-1] == "Next: repeat the run when the host is idle; top shows what uses it."
    changed = busy(on_cpu((20, 0.1), (20, 0.2)))
    assert changed.speed_change is not None
    assert not any("Slowed" in line for line in short(changed)), "as other programs did it"
    repeats = document_text(repeats_document(combine_repeats([result, result], 2)), 120)
    busiest = "in the first, other programs used 90% of the CPU."
    assert repeats.startswith(f"NOT RELIABLE: 2 of 2 repeats on a busy host; {busiest}")
    failed = short(busy(msgspec.structs.replace(gpu_result(2), status="failed", failure=FAILURE)))
    assert "failed" in failed[0]
    assert "NOT RELIABLE" not in failed[0]
    assert "NOT RELIABLE" in failed[1]


def test_an_accuracy_of_all_examples_replaces_that_of_the_last_step() -> None:
    step_only = msgspec.structs.replace(gpu_result(2), last_top1=0.125, last_top5=0.5)
    assert "top-1 12.5%" in shown(step_only)
    judged = Evaluated(time_s=1.0, examples=50, top1=0.5, top5=0.75, loss=1.0, seconds=1.0)
    text = shown(msgspec.structs.replace(step_only, evaluations=(judged,)))
    assert "top-1 50.00%, top-5 75.00%, loss 1" in " ".join(text.split())
    assert "12.5%" not in text


@pytest.mark.parametrize(("verdict", "style"), [("within", ""), ("slower", "yellow")])
def test_a_speed_below_its_prediction_is_marked(verdict: str, style: str) -> None:
    lines = document_lines(run_document(predicted(verdict)), 120)
    assert any("what it says" in words and used == style for line in lines for words, used in line)
