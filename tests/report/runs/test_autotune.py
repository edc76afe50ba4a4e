"""Predicted and measured speeds side by side."""

from gputopo.report.runs.autotune import autotune_blocks, autotune_note
from gputopo.values.run.plan import Autotune, Candidate, Measured, Timed
from tests.report.shown import text_of_blocks

NCCL = Candidate(gpus=(0, 1), variable_update="replicated", all_reduce="nccl", images_per_sec=2140.4)
CPU = Candidate(gpus=(0, 1), ps_device="cpu", images_per_sec=1980.0)
COPY = Candidate(gpus=(0, 1), variable_update="replicated", all_reduce="copy")
FOUND = Autotune(
    winner=1,
    settled="lead",
    measured=(
        Measured(candidate=NCCL, runs=(Timed(2000.0, 0.01), Timed(2020.0, 0.01))),
        Measured(candidate=CPU, runs=(Timed(2210.0, 0.01), Timed(2190.0, 0.01))),
        Measured(candidate=COPY, failure="out of memory"),
    ),
    seconds=80.0,
    budget_s=300.0,
    model="vgg16",
    batch_size=64,
)


def test_a_table_has_predicted_and_measured_side_by_side() -> None:
    assert text_of_blocks(*autotune_blocks(FOUND)).splitlines() == [
        "Autotune of vgg16, images/sec at batch 64 per device",
        "Placement             predicted  measured  runs",
        "replicated nccl            2140      2010     2",
        "parameter_server cpu       1980      2200     2  fastest",
        "replicated copy               -         -     0  failed: out of memory",
    ]


def test_a_sentence_has_the_choice_and_how_sure_it_is() -> None:
    assert autotune_note(FOUND) == (
        "Fastest of 2 measured placements: parameter_server cpu, 2200 images/sec measured, 1980 predicted; "
        "its lead exceeds the noise."
    )
