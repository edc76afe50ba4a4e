"""The report of a plan."""

import msgspec
import pytest

from gputopo.report import autotune_document, autotune_note, document_lines, document_text, plan_document
from gputopo.report import plan_summary as summary
from gputopo.values.run.plan import (
    Autotune,
    Candidate,
    GpuCount,
    GroupSpeed,
    HowMany,
    Learned,
    MeasuredPlacement,
    Plan,
    Prediction,
    Refusal,
    ResourceLoad,
    StepLine,
    TimedRun,
    Unequal,
    WhatIf,
)
from tests.report.shown import assert_golden

CHOICE = Candidate(
    gpus=(0, 1), ps_device="gpu:0", reasons=("GPUs 0 and 1 are PIX apart", "lowest of 9 equal sets")
)


def shown(plan: Plan, width: int = 80) -> str:
    return document_text(plan_document(plan), width)


def predicted(ps: str, ms: float, gpus: tuple[int, ...] = (0, 1)) -> Candidate:
    """Return a candidate whose step is 50 ms of compute and else as much weights as gradients."""
    exposed = {"weights": (ms - 50) / 2, "gradients": (ms - 50) / 2, "variables": 0.0}
    return Candidate(
        gpus=gpus,
        ps_device=ps,
        images_per_sec=100_000 / ms,
        images_per_sec_low=80_000 / ms,
        images_per_sec_high=120_000 / ms,
        speedup=1.5,
        step_ms=ms,
        compute_ms=50.0,
        exposed_ms=exposed,
        limited_by="link of GPU 0, sending",
        reasons=("far",),
    )


BASIS = Prediction(
    program="gputopo",
    batch_size=50,
    single_gpu_images_per_sec={0: 1000.0, 1: 1000.0},
    single_gpu_source="given",
    margin=0.2,
)
# As fast as the choice: one line for both.
EQUAL = msgspec.structs.replace(
    predicted("cpu", 80.0), variable_update="replicated", ps_device=None, all_reduce="copy"
)
PREDICTED = Plan(
    choice=predicted("gpu:0", 80.0),
    candidates=(predicted("gpu:0", 80.0), predicted("cpu", 100.0), predicted("gpu:spread", 200.0)),
    prediction=BASIS,
)

TOGETHER = GroupSpeed(gpus=(0, 1, 2), images_per_sec=270.0, batch_sizes=(64, 64, 64))
ALONE = GroupSpeed(gpus=(0, 1), images_per_sec=198.0, batch_sizes=(64, 64))
SHARED = GroupSpeed(gpus=(0, 1, 2), images_per_sec=300.0, batch_sizes=(60, 60, 72))
UNEQUAL = Unequal(
    together=TOGETHER, alone=(ALONE,), in_proportion=SHARED, better=SHARED, use="--batch-size 60,60,72"
)

UP = ResourceLoad(
    resource="GPUs 0-3 to the host",
    count=4,
    weights_mb=0.0,
    wait_ms=0.0,
    gradients_mb=20.0,
    busy_ms=40.0,
    through_ms=80.0,
)
DOWN = msgspec.structs.replace(
    UP, resource="the host to GPUs 0-3", weights_mb=20.0, wait_ms=10.0, gradients_mb=0.0, busy_ms=0.0
)
LINE = StepLine(
    weights_ms=10.0,
    forward_ms=20.0,
    backward_ms=40.0,
    gradients_ms=10.0,
    variables_ms=0.0,
    resources=(UP, DOWN),
    blocks=(),
)
COUNTS = (
    GpuCount(num_gpus=1, images_per_sec=1000.0, speedup=1.0),
    GpuCount(num_gpus=2, images_per_sec=1250.0, speedup=1.25, gain=0.25),
)

NCCL = Candidate(gpus=(0, 1), variable_update="replicated", all_reduce="nccl", images_per_sec=2140.4)
CPU = Candidate(gpus=(0, 1), ps_device="cpu", images_per_sec=1980.0)
COPY = Candidate(gpus=(0, 1), variable_update="replicated", all_reduce="copy")
TUNED = Autotune(
    winner=1,
    settled="lead",
    measured=(
        MeasuredPlacement(candidate=NCCL, runs=(TimedRun(2000.0, 0.01), TimedRun(2020.0, 0.01))),
        MeasuredPlacement(candidate=CPU, runs=(TimedRun(2210.0, 0.01), TimedRun(2190.0, 0.01))),
        MeasuredPlacement(candidate=COPY, failure="out of memory"),
    ),
    seconds=80.0,
    budget_s=300.0,
    model="vgg16",
    batch_size=64,
)

PLANS = {
    "by rule": Plan(
        choice=CHOICE,
        candidates=(CHOICE, Candidate(gpus=(3, 4), ps_device="cpu", reasons=("farthest pair PHB", "more"))),
        refused=(Refusal(reason="GPU 2 excluded: lost"),),
        model="alexnet",
        source="nvidia-smi topo",
    ),
    "with many reasons and candidates": Plan(
        choice=msgspec.structs.replace(
            CHOICE, reasons=(*map(str, range(7)), "GPU 2 excluded: lost", "GPU 3 is in use")
        ),
        candidates=(CHOICE, *(Candidate(gpus=(0, n), ps_device="cpu") for n in range(2, 11))),
        refused=(Refusal(reason="GPU 2 excluded: lost"),),
        warnings=("GPU 3 is in use",),
    ),
    "predicted": PREDICTED,
    "predicted with equal candidates": msgspec.structs.replace(
        PREDICTED, candidates=(PREDICTED.choice, EQUAL, predicted("cpu", 100.0))
    ),
    "slower than its runner-up": msgspec.structs.replace(
        PREDICTED, prediction=msgspec.structs.replace(BASIS, margin=-0.1)
    ),
    "slower than one GPU": msgspec.structs.replace(
        PREDICTED,
        prediction=msgspec.structs.replace(
            BASIS, fewer=GpuCount(num_gpus=1, images_per_sec=1600.0, speedup=1.0)
        ),
    ),
    "faster than two GPUs": msgspec.structs.replace(
        PREDICTED,
        prediction=msgspec.structs.replace(
            BASIS,
            fewer=GpuCount(num_gpus=2, images_per_sec=1000.0, speedup=1.0),
            learned=Learned(runs=5, jobs=3, step_factor=1.25),
        ),
        how_many=HowMany(num_gpus=2, gain=0.25, reason="they reach 25%", counts=COUNTS),
    ),
    "of a wide range": Plan(
        choice=msgspec.structs.replace(PREDICTED.choice, images_per_sec_low=None, images_per_sec_high=None),
        prediction=msgspec.structs.replace(BASIS, learned=Learned(runs=1, jobs=1)),
    ),
    "measured": Plan(choice=msgspec.structs.replace(PREDICTED.choice, evidence="measured")),
    "with a timeline of many links": Plan(
        choice=CHOICE, line=msgspec.structs.replace(LINE, resources=(UP,) * 13)
    ),
    "of unequal GPUs": Plan(choice=CHOICE, unequal=UNEQUAL),
    "with autotune": msgspec.structs.replace(PREDICTED, autotune=TUNED),
    "of a changed machine": msgspec.structs.replace(
        PREDICTED,
        what_if=WhatIf(
            changes=("gpu0: x16", "nvlink 0-1"),
            before=predicted("gpu:0", 100.0),
            after=PREDICTED.choice,
            share=0.25,
            basis=("GPU 0: Gen3 x16 instead of Gen3 x4",),
        ),
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_is_shown_as_it_was(name: str) -> None:
    """And before a run in a few lines."""
    assert_golden(f"plan {name}", "\n".join([shown(PLANS[name]), *summary(PLANS[name]), ""]))


def test_autotune_has_predicted_and_measured_side_by_side_and_says_how_sure_it_is() -> None:
    assert_golden("autotune", f"{document_text(autotune_document(TUNED), 80)}{autotune_note(TUNED)}\n")


@pytest.mark.parametrize(("gpus", "text"), [(tuple(range(8)), "0-7"), ((4, 3, 2, 1, 0), "4,3,2,1,0")])
def test_gpus_are_written_in_the_order_of_the_towers_as_the_option_takes_them(
    gpus: tuple[int, ...], text: str
) -> None:
    assert plan_document(Plan(choice=Candidate(gpus=gpus))).answer == f"GPUs {text}, parameter_server."


def test_the_steps_of_candidates_are_bars_of_their_parts_and_each_has_its_colour() -> None:
    lines = shown(PREDICTED).partition("Candidates\n")[2].splitlines()
    bars = [line.split()[-1] for line in lines[1:4]]
    for bar, ms in zip(bars, (80, 100, 200), strict=True):
        assert bar == "█" * bar.count("█") + "▓" * bar.count("▓") + "▒" * bar.count("▒")
        assert bar.count("█") == pytest.approx(50 * len(bar) / ms, abs=1)
    spans = [span for line in document_lines(plan_document(PREDICTED), 80) for span in line]
    styles = {text[0]: style for text, style in spans if text.startswith(("█", "▓", "▒"))}
    assert len(set(styles.values()) - {""}) == len(styles) == 3


@pytest.mark.parametrize(
    ("better", "use", "words"),
    [
        (TOGETHER, "--batch-size 64", "equal batches would be faster: --batch-size 64"),
        (ALONE, "--gpus 0,1", "GPUs 0-1 alone would be faster: --gpus 0,1"),
        (SHARED, "", "the plan is the fastest"),
        (TOGETHER, "", "no alternative is clearly faster than the plan (10.0%)"),
    ],
)
def test_unequal_gpus_are_compared_with_what_each_lacks_of_the_fastest(
    better: GroupSpeed, use: str, words: str
) -> None:
    unequal = msgspec.structs.replace(UNEQUAL, better=better, use=use)
    text = shown(Plan(choice=CHOICE, unequal=unequal))
    assert words in text
