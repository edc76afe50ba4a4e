import re
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
from tests.invented_runs import BEGAN_S, SAYS, InventedRun, Noise, cpu_devices, gpu_devices, step, stream
from tests.kit.drills.box import Trainer, slower
from tests.report.shown import text_of
from tests.runs.verdict.cards import always as readings
from tests.runs.verdict.cards import events

QUIET = Noise(own=0.01, stalls=0.0)
FAILURE = RankFailed(
    time_s=1.0, kind="killed", cause="the worker was killed by SIGKILL", remedy="look at dmesg", exit_code=137
)


def verdicts(result: Result) -> list[str]:
    """The lines on devices and the whole run, between the answer and the table."""
    return document_text(run_document(result), 400).split("\n\n")[1].splitlines()


def shown(result: Result, width: int = 80) -> str:
    return document_text(run_document(result), width)


def gpu_result(count: int, slow: dict[int, float] | None = None) -> Result:
    return summarise(stream(gpu_devices(count), InventedRun(count, slow=slow or {}, noise=QUIET).steps(30)))


@pytest.mark.parametrize("count", [1, 16])
def test_the_report_fits_80_columns_and_hides_nothing(count: int) -> None:
    devices = gpu_devices(count)
    text = shown(gpu_result(count, {count - 1: 0.3} if count > 1 else {}))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for device in devices:
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


def test_a_device_row_reads_as_it_was_measured() -> None:
    steps = [step(n, [(0.02, 0.08), (0.0, 0.2)], seconds=0.25) for n in range(1, 20)]
    text = shown(summarise(stream(cpu_devices(2), steps)))
    rows = [line.split() for line in text.splitlines() if re.match(r"CPU \d", line)]
    assert rows[0] == ["CPU", "0", "80.0", "100.0", "20.0", "80.0", "150.0", "local", "not", "slower"]
    assert rows[1] == ["CPU", "1", "40.0", "50.0", "0.00", "200.0", "50.0", "host", "!", "slow", "60%"]
    # 16 images in 0.25 s each step.
    assert "64.0 ± 0.00 (jitter 0.00), median 64.0, by wall time 64.0" in text
    assert "16 images: 8 on each of 2 devices" in text
    assert "235.9 MiB on /CPU:0" in text


def test_a_slow_device_is_marked_in_its_row_and_named_below() -> None:
    text = " ".join(shown(gpu_result(4, {2: 0.4})).split())
    assert re.search(r"! GPU 2 \(NVIDIA GeForce GTX 1070\) computes \d+% slower than its peers", text)
    assert "No device is more than 5%" not in text


def test_a_cause_stands_in_the_row_and_in_the_sentence_above_the_table() -> None:
    trainer = Trainer(slow={2: slower(20)})
    text = document_text(run_document(summarise(events(trainer, 100, {2: readings(memory_mhz=3800)}))), 120)
    assert re.search(r"^GPU 2 .* ! slow 20% +memory-clock < 4\.\d%", text, re.MULTILINE)
    assert text.index("Partly: memory") < text.index("\nGPU 2 ")


def test_the_failure_and_the_verdict_come_first_and_the_versions_last() -> None:
    failed = msgspec.structs.replace(gpu_result(4, {2: 0.4}), failure=FAILURE, status="failed")
    text = shown(failed)
    places = [text.index(one) for one in ("Failed: ", "! GPU 2", "\nGPU 0 ", "\nops ", "\nversions ")]
    assert places == sorted(places)
    assert text.rstrip().splitlines()[-1].startswith("versions")


def test_without_all_figures_the_report_is_the_speed_the_verdict_the_devices_and_the_loss() -> None:
    lines = document_text(run_document(gpu_result(2), verbose=False), 120).splitlines()
    assert re.fullmatch(r"[\d.]+ images/sec ± [\d.]+: .* on 2 GPUs, .*", lines[0])
    assert re.fullmatch(
        r"No device is more than \d\.\d% slower than its peers \(99\.9% confidence\)\.", lines[2]
    )
    assert lines[-1].startswith("loss  ")
    assert len(lines) <= 12
    spoilt = msgspec.structs.replace(gpu_result(2), replica_difference=0.5)
    assert "do not trust this training" in document_text(run_document(spoilt, verbose=False), 120)


def test_only_what_is_slow_is_red() -> None:
    slow, even = gpu_result(4, {2: 0.4}), gpu_result(4)
    red = {
        text.strip()
        for pieces in document_lines(run_document(slow), 80)
        for text, style in pieces
        if "red" in style
    }
    assert "GPU 2" in red
    assert "GPU 1" not in red
    assert not any("red" in style for pieces in document_lines(run_document(even), 80) for _, style in pieces)


def test_an_even_run_states_to_within_what_it_is_even() -> None:
    assert "No device is more than 1.7% slower than its peers (99.9% confidence)." in shown(gpu_result(4))
    alone = shown(gpu_result(1))
    assert not re.search("even|verdict|[Cc]annot tell|No device", alone)


def test_a_difference_that_is_not_proven_is_shown_as_such_in_table_and_words() -> None:
    steps = InventedRun(2, slow={1: 0.25}, noise=Noise(own=0.3)).steps(20)
    result = summarise(stream(gpu_devices(2), steps))
    assert result.anomalies == ()
    text = " ".join(shown(result).split())
    assert re.search(r"GPU 1 GTX 1070 .* at most \d+%", text)
    assert re.search(
        r"GPU 1 was \d+% slower than its peers in these steps, which is not significant\. "
        r"No device is more than \d+% slower than its peers \(99\.9% confidence\)\.",
        text,
    )
    assert "even" not in text


def test_what_a_slow_device_costs_stands_below_it() -> None:
    steps = [step(n, [(0.0, 0.1), (0.0, 0.125)], seconds=0.135) for n in range(1, 40)]
    lines = verdicts(summarise(stream(gpu_devices(2), steps)))
    # 16 images in 135 ms, without the slow one in 110 ms.
    assert lines[1:] == [
        "GPU 1 costs 19% of this run: 145 instead of 119 images/sec.",
        "GPU 0: not slower than the others.",
    ]


def test_a_check_that_left_a_device_out_reports_it() -> None:
    devices = (*gpu_devices(2), Device(tower=2, device="/GPU:2", gpu=2, gpu_name="GTX 1080"))
    result = summarise(
        stream(devices, InventedRun(3, noise=Noise(common=0.05, own=0.01, stalls=0.0)).steps(20))
    )
    lines = verdicts(result)
    assert lines == [
        "GPU 0, GPU 1: each at most 2.8% slower than its peers (99.9% confidence).",
        "GPU 2 was not compared: no peer of its kind.",
    ]


def test_a_rehearsal_is_shown_in_the_title_and_in_its_notes() -> None:
    stand_ins = tuple(Device(tower=t, device=f"/CPU:{t}", gpu=t + 3, gpu_name="GTX 1070") for t in range(2))
    result = summarise(stream(stand_ins, InventedRun(2, noise=QUIET).steps(20), rehearsal=True))
    text = shown(result)
    assert "rehearsal of 7gforce" in run_document(result).answer
    assert SAYS in text
    assert "stands" in text
    assert re.search(r"^CPU 1 +4 GTX 1070 ", text, re.MULTILINE)
    assert "MHz" not in text


def test_a_failure_shows_its_cause_what_to_do_and_the_last_lines() -> None:
    events = list(stream(cpu_devices(2), InventedRun(2).steps(20)))[:12]
    lost = RankFailed(
        time_s=1.0,
        kind="killed",
        cause="the worker was killed by SIGKILL",
        remedy="look at dmesg",
        exit_code=137,
        last_lines=("[bold]one[/bold]", "two"),
    )
    result = summarise([*events, lost])
    assert failure_lines(result)[:2] == [
        "Failed: the worker was killed by SIGKILL",
        "What to do: look at dmesg",
    ]
    text = shown(result)
    assert "failed after 6 steps" in run_document(result).answer
    assert "  [bold]one[/bold]\n  two" in text
    assert failure_lines(gpu_result(1)) == []


def test_every_beginning_of_a_run_can_be_shown() -> None:
    events = list(stream(gpu_devices(2), InventedRun(2).steps(3)))
    for length in range(14):
        assert "Failed: the events of the run stop" in shown(summarise(events[:length]))


@pytest.mark.parametrize(
    ("mode", "difference", "says"),
    [
        ("replicated", 0.0, "all equal, as required"),
        ("replicated", 0.5, "differ by 0.5 at most, and must be equal"),
        ("independent", 0.5, "so they differ"),
    ],
)
def test_differences_between_copies_are_judged_by_the_mode(mode: str, difference: float, says: str) -> None:
    events = list(stream(cpu_devices(2), InventedRun(2).steps(3)))
    result = summarise([*events, ReplicasCompared(time_s=1.0, largest_difference=difference)])
    result = msgspec.structs.replace(result, spec={**result.spec, "variable_update": mode})
    assert says in " ".join(shown(result, width=120).split())


def test_what_nobody_sampled_is_shown_as_missing_with_the_reason() -> None:
    run = stream(gpu_devices(2), InventedRun(2, noise=QUIET).steps(30))
    text = shown(summarise(event for event in run if not isinstance(event, Sample)), width=160)
    (row,) = re.findall(r"^GPU 0 .*$", text, re.MULTILINE)
    assert row.split()[-5:] == ["\N{EN DASH}"] * 5
    assert (
        "not known   core clock, memory clock, temperature, power, PCIe link: "
        "no sample while the steps were counted\n"
    ) in text


def test_what_a_gpu_reported_stands_in_its_row_and_what_it_did_not_is_named() -> None:
    full = GpuSample(
        gpu=0, graphics_mhz=1700, memory_mhz=3800, temperature_c=71, power_w=120.6, pcie_gen=3, pcie_width=8
    )
    result = gpu_result(2)
    seen = Sample(time_s=BEGAN_S + 11, gpus=(full,))
    run = stream(gpu_devices(2), InventedRun(2, noise=QUIET).steps(30))
    result = summarise(
        one for event in run for one in ((event, seen) if isinstance(event, Sample) else (event,))
    )
    text = shown(result, width=160)
    assert re.search(r"^GPU 0 .* 1700 \(85\)  *3800 \(95\) gen 3 x8 71 121$", text, re.MULTILINE)
    assert "not known   temperature, power, PCIe link of GPU 1: not reported by NVML\n" in text


def test_the_speed_alone_comes_from_a_screen_of_the_same_job_on_this_machine(tmp_path: Path) -> None:
    machine, history = read_bundled("7gforce"), BoxHistory(tmp_path)
    result = gpu_result(2)
    screened = tuple(ScreenDevice(number=n, word="even", says="", alone=90.0 - n) for n in range(2))
    screen = Screen(
        model="alexnet",
        batch_size=8,
        backend="gpu",
        says=(),
        devices=screened,
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
    for other in ({"batch_size": 9}, {"fingerprint": "another"}, {"devices": ()}):
        of_another = msgspec.structs.replace(screen, **other)
        assert with_alone(result, machine, [(Path("/runs/1"), of_another)], history) == result
    assert with_alone(result, None, [(Path("/runs/1"), screen)], history) == result


def test_a_loss_that_is_not_a_number_is_written_out() -> None:
    steps = [step(n, [(0.0, 1.0)], loss=None) for n in range(1, 4)]
    text = " ".join(shown(summarise(stream(cpu_devices(1), steps))).split())
    assert "not a number → not a number" in text
    assert "The loss is not a number from step 1 on" in text


def test_what_was_asked_and_what_ran_are_shown() -> None:
    started, *rest = stream(cpu_devices(2), InventedRun(2).steps(30))
    assert isinstance(started, RunStarted)
    spec = {
        **started.spec,
        "asked": {"all_reduce": "xring", "async_": True, "trace": "3-4", "learning_rate": 0.25},
        "all_reduce": "ring",
        "grad_reduce": "mean",
        "precision": {"compute": "fp16", "loss_scale": 128.0, "xla": True},
    }
    text = shown(summarise([msgspec.structs.replace(started, spec=spec), *rest]), width=200)
    assert "--all-reduce xring, --async, --trace 3-4, --learning-rate 0.25" in text
    assert "all-reduce ring (added in a ring of copies" in text
    assert "fp16, NHWC, sgd, loss scale 128, XLA" in text


def steps_of(*levels: tuple[int, float], device_1: float = 1.0) -> list[Step]:
    """So many steps of so many seconds; device 1 takes `device_1` times as long."""
    seconds = [level for count, level in levels for _ in range(count)]
    return [step(n, [(0.0, took), (0.0, took * device_1)]) for n, took in enumerate(seconds, 1)]


def short(result: Result) -> list[str]:
    return document_text(run_document(result, verbose=False), 120).splitlines()


def test_a_slower_first_part_is_reported_with_its_length_and_the_speed_is_without_it() -> None:
    lines = short(summarise(stream(cpu_devices(2), steps_of((8, 0.3), (40, 0.1)))))
    assert lines[0].startswith("160.0 images/sec ± 0.00: alexnet on 2 CPU devices")
    assert "warm-up  the first 8 steps were slower, for 2.40 s; the speed excludes them" in lines
    even = short(summarise(stream(cpu_devices(2), steps_of((40, 0.1)))))
    assert not any("warm-up" in line or "Slowed" in line for line in even)


def test_a_faster_first_part_is_reported_as_a_slow_down_with_its_time() -> None:
    lines = short(summarise(stream(cpu_devices(2), steps_of((22, 0.391), (28, 0.439)))))
    assert lines[2:4] == [
        "Slowed from 40.9 to 36.4 images/sec after step 22 (11% slower).",
        "CPU devices share the cores: differences between them are not judged.",
    ]
    faster = short(summarise(stream(cpu_devices(2), steps_of((22, 0.439), (28, 0.391)))))
    assert faster[2] == "Sped up from 36.4 to 40.9 images/sec after step 22 (12% faster)."


def test_a_slow_down_that_a_verdict_has_is_not_reported_twice() -> None:
    steps = [*steps_of((60, 0.1)), *steps_of((60, 0.1), device_1=1.3)]
    steps = [msgspec.structs.replace(one, step=number) for number, one in enumerate(steps, 1)]
    lines = short(summarise(stream(gpu_devices(2), steps)))
    assert any("slower than its peers since about step" in line for line in lines)
    assert not any(line.startswith("Slowed") for line in lines)


def test_cpu_devices_have_a_verdict_only_if_a_difference_is_proven() -> None:
    noisy = short(summarise(stream(cpu_devices(2), InventedRun(2, slow={1: 0.05}).steps(20))))
    text = "\n".join(noisy)
    assert "CPU devices share the cores: differences between them are not judged." in noisy
    for words in ("cannot tell", "Cannot tell", "To detect", "looks", "verdict"):
        assert words not in text
    proven = short(summarise(stream(cpu_devices(2), steps_of((40, 0.1), device_1=1.3))))
    assert any(line.startswith("! CPU device 1 computes 23% slower than its peers") for line in proven)
    assert any(line.startswith("CPU 1 ") and line.endswith("! slow 23%") for line in proven)
    assert not any("share the cores" in line for line in proven)
    hosts = tuple(
        msgspec.structs.replace(one, rank=one.tower, host=f"n{one.tower}") for one in cpu_devices(2)
    )
    assert not any("share the cores" in line for line in short(summarise(stream(hosts, steps_of((40, 0.1))))))


# Noise and number of steps as in runs of three models on two idle cores.
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
    for seed in range(20):
        steps = InventedRun(2, noise=noise, seed=seed).steps(count)
        lines = short(summarise(stream(cpu_devices(2), steps)))
        assert re.match(r"[\d.]+ images/sec ± [\d.]+: alexnet on 2 CPU devices", lines[0])
        assert "CPU devices share the cores: differences between them are not judged." in lines
        assert not re.search("annot tell|not significant|--num-batches|RELIABLE", "\n".join(lines))


def busy(result: Result) -> Result:
    load = HostSummary(samples=2, other_cpu_share=0.9, busy="other programs used 90% of the CPU")
    return msgspec.structs.replace(result, host_load=load)


@pytest.mark.parametrize("count", [3, 40])
def test_of_a_busy_host_the_first_line_says_that_the_speed_is_not_reliable(count: int) -> None:
    result = busy(summarise(stream(cpu_devices(2), steps_of((count, 0.1), device_1=1.3))))
    lines = short(result)
    assert lines[0] == "123.1 images/sec, NOT RELIABLE: other programs used 90% of the CPU."
    assert lines[1].startswith("alexnet on 2 CPU devices")
    assert "±" not in lines[0]
    assert lines[-1] == "Next: repeat the run when the host is idle; top shows what uses it."
    changed = busy(summarise(stream(cpu_devices(2), steps_of((20, 0.1), (20, 0.2)))))
    assert changed.speed_change is not None
    assert not any("Slowed" in line for line in short(changed)), "as other programs did it"
    repeats = document_text(repeats_document(combine_repeats([result, result], 2)), 120)
    busiest = "in the first, other programs used 90% of the CPU."
    assert repeats.startswith(f"NOT RELIABLE: 2 of 2 repeats on a busy host; {busiest}")


def test_of_a_run_that_failed_on_a_busy_host_the_first_line_is_that_it_failed() -> None:
    failed = msgspec.structs.replace(gpu_result(2), status="failed", failure=FAILURE)
    lines = short(busy(failed))
    assert "failed" in lines[0]
    assert "NOT RELIABLE" not in lines[0]
    assert "NOT RELIABLE" in lines[1]


def test_the_last_line_is_the_next_step_which_follows_from_what_was_found() -> None:
    assert short(gpu_result(4, {2: 0.4}))[-1].startswith("Next: gputopo screen ")
    assert not short(gpu_result(4))[-1].startswith("Next: ")
    on_cpu = short(summarise(stream(cpu_devices(2), steps_of((40, 0.1)))))[-1]
    assert "gputopo plan --from 7gforce --model alexnet" in on_cpu
    failed = msgspec.structs.replace(gpu_result(2), status="failed", failure=FAILURE)
    assert not short(failed)[-1].startswith("Next: ")


def test_an_evaluation_shows_accuracy_and_loss_of_all_examples_and_not_of_the_last_step() -> None:
    step_only = msgspec.structs.replace(gpu_result(2), last_top1=0.125, last_top5=0.5)
    assert "top-1 12.5%" in shown(step_only)
    assert " → " in shown(step_only)
    judged = Evaluated(time_s=1.0, examples=50, top1=0.5, top5=0.75, loss=1.0, seconds=1.0)
    text = shown(msgspec.structs.replace(step_only, evaluations=(judged,)))
    assert "top-1 50.00%, top-5 75.00%, loss 1" in " ".join(text.split())
    assert "12.5%" not in text
    assert " → " not in text


def test_traced_steps_have_their_time_together_and_the_folder_of_their_profile() -> None:
    some = Traced(time_s=1.0, path="/t", steps=(4, 5, 6, 9), seconds=0.75)
    one = Traced(time_s=1.0, path="/t", steps=(2,), seconds=0.75)
    text = " ".join(shown(msgspec.structs.replace(gpu_result(1), traces=(some, one)), width=200).split())
    assert "trace steps 4-6,9, 750.0 ms together: /t" in text
    assert "trace step 2, 750.0 ms: /t" in text


def test_the_input_alone_has_no_weights_and_no_computing_in_its_table() -> None:
    result = summarise(stream(cpu_devices(2), InventedRun(2).steps(3)))
    alone = shown(msgspec.structs.replace(result, spec={**result.spec, "task": "input"}), width=200)
    assert "weights" not in alone
    assert " batch" in alone
    assert " copy" in alone


@pytest.mark.parametrize(("verdict", "style"), [("within", ""), ("slower", "yellow"), ("not compared", "")])
def test_predicted_stands_beside_measured(verdict: str, style: str) -> None:
    found = AgainstPrediction(
        verdict=verdict,
        says="what it says",
        images_per_sec=1560.0,
        images_per_sec_low=1400.0,
        images_per_sec_high=1700.0,
        measured=1300.0,
        parts={"compute": PartMs(100.0, 101.0), "weights": PartMs(10.0, 20.0), "rest": PartMs(0.0, 40.0)},
    )
    lines = document_lines(run_document(msgspec.structs.replace(gpu_result(2), prediction=found)), 120)
    text = text_of(lines)
    assert re.search(r"^predicted +1,560 \(1,400 to 1,700\); what it says$", text, re.MULTILINE)
    parts = "compute 100.0 / 101.0, weights 10.0 / 20.0, gradients and update 0.00 / 40.0"
    assert parts in " ".join(text.split())
    assert any("what it says" in words and used == style for line in lines for words, used in line)
