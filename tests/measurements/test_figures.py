"""Scaling, ratios, pairs, clocks, comparisons: on small invented studies."""

import random
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.captures import read_bundled
from gputopo.measurements import not_comparable, study_of
from gputopo.report import document_text, study_document
from gputopo.values import schema
from gputopo.values.run.measurement import BUSY, DRILL, DeviceFigure, Measurement
from gputopo.values.study import OBSERVATIONS, Against, Cell, Figures, Study, varying
from tests.benchmarks.bench_comparisons import KINDS, alarms
from tests.report.shown import section_text


def run(speed: float | None, n: int = 1, **fields: Any) -> Measurement:
    known: dict[str, Any] = {
        "source": f"run-{n}-{speed}", "machine": "box", "gpu": "GeForce GTX 1070", "model": "resnet50",
        "data": "synthetic", "batch_per_gpu": 64, "precision": "fp32", "framework": "gputopo",
        "version": "2.21.0", "n_gpus": n, "images_per_sec": speed,
    }  # fmt: skip
    return msgspec.convert({**known, **fields}, Measurement)


def figures_of(measurements: Iterable[Measurement], **more: Any) -> Figures:
    return study_of(measurements, title="t", **more).figures


def cells_of(measurements: Iterable[Measurement]) -> tuple[Cell, ...]:
    return figures_of(measurements).cells


def against(now: Iterable[Measurement], before: Iterable[Measurement], **more: Any) -> tuple[Against, ...]:
    """The comparisons with earlier runs."""
    return figures_of(now, earlier=before, **more).against


def says(measurements: list[Measurement], id: str) -> list[str]:
    return [one.says for one in study_of(measurements, title="t").observations if one.id == id]


def test_a_failed_run_has_no_figure_and_is_no_zero() -> None:
    found = figures_of([run(100), run(None, 2, status="failed", reason="out of memory"), run(180, 4)])

    assert [cell.images_per_sec for cell in found.cells] == [100, None, 180]
    assert found.cells[1].failed == ("out of memory",)
    assert [row.n_gpus for row in found.scalings[0].rows] == [1, 4]


def test_repeats_are_one_cell_and_the_same_file_counts_once() -> None:
    (cell,) = cells_of([run(100), run(104), run(104, digest="a"), run(104, digest="a", source="copy")])

    assert cell.repeats == (100, 104, 104)
    assert cell.duplicates == ("copy",)
    assert cell.images_per_sec == pytest.approx(308 / 3)


def test_contradictory_repeats_are_named() -> None:
    (words,) = says([run(100), run(150)], "repeats.contradict")
    assert "100 to 150 images/sec" in words


@pytest.mark.parametrize(
    ("difference", "refused"),
    [
        ({"batch_per_gpu": 16}, "batch per device"),
        ({"version": "2.16.1"}, "version"),
    ],
)
def test_no_speedup_is_computed_over_a_run_under_other_conditions_and_that_is_said(
    difference: dict[str, Any], refused: str
) -> None:
    runs = [run(100, **difference), run(190, 2)]

    assert not figures_of(runs).scalings
    (words,) = says(runs, "compare.refused")
    assert refused in words


def test_a_speedup_is_over_one_gpu_in_the_same_mode_then_over_one_of_the_set() -> None:
    other = run(120, gpus=[0], variable_update="independent")
    same = [run(speed, gpus=[gpu], variable_update="replicated") for gpu, speed in ((1, 90), (3, 100))]
    several = run(180, 2, gpus=[0, 1], variable_update="replicated")

    for alone, baseline in (([other, *same], 90), ([other, same[1]], 100), ([other], 120)):
        (scaling,) = figures_of([*alone, several]).scalings
        assert (scaling.rows[0].images_per_sec, scaling.largest.speedup) == (baseline, 180 / baseline)
        assert scaling.largest.same_mode == (baseline != 120)


def test_superlinear_scaling_names_the_figure_or_the_baseline() -> None:
    (figure,) = says([run(100), run(195, 2), run(430, 4), run(760, 8)], "scaling.superlinear")
    (baseline,) = says([run(100), run(215, 2), run(430, 4)], "scaling.superlinear")
    (cause,) = says([run(100, conditions=["GPU 0 at its power limit"]), run(215, 2)], "scaling.superlinear")

    assert "Probably too high" in figure
    assert "The baseline of one GPU is probably too low" in baseline
    on_cpu = [run(100, backend="cpu"), run(215, 2, backend="cpu"), run(430, 4, backend="cpu")]
    (words,) = says(on_cpu, "scaling.superlinear")
    assert "GPU" not in words.replace("CPU", "")
    assert "power limit" in cause
    assert not says([run(100), run(201, 2)], "scaling.superlinear")  # within the noise


def test_where_more_gpus_stop_paying_is_named_with_both_speeds() -> None:
    (words,) = says([run(100), run(190, 2), run(225, 4)], "scaling.stops")
    assert "use 2 GPUs: 190 images/sec, 225 on 4 (+18%)" in words  # a GPU adds 17 %


def test_figures_that_differ_too_much_from_run_to_run_have_no_verdict() -> None:
    runs = [run(55), run(180), run(70), run(69, 2)]

    (words,) = says(runs, "scaling.verdict")
    assert "unclear (figures are uncertain by" in words
    assert not says(runs, "scaling.stops")


@pytest.mark.parametrize(
    ("runs", "headline"),
    [
        (
            [run(4618.4, 2)],
            "resnet50 on 2 GPUs: 4,618 images/sec, from 1 run; repeat it to see how much runs differ.",
        ),
        ([run(100, source="a"), run(101, source="b")], "resnet50 on 1 GPU: 100.5 images/sec, from 2 runs."),
        (
            [run(None, status="failed", reason="out of memory")],
            "1 run without a figure (resnet50): out of memory.",
        ),
    ],
)
def test_every_study_has_a_headline(runs: list[Measurement], headline: str) -> None:
    assert study_of(runs, title="t").headline == headline


def test_the_headline_takes_what_pays_and_avoids_the_far_pair() -> None:
    cpu = {"variable_update": "parameter_server", "ps_device": "cpu"}
    runs = [run(100), run(190, 2, **cpu), run(150, 2, variable_update="replicated"), run(200, 4, **cpu)]
    assert study_of(runs, title="t").headline == "Take 2 GPUs, parameter server on the CPU: 1.9x."
    noisy = [run(100), run(150, 2), run(149, 4, uncertainty=30.0)]  # 4 may pay, but are no faster
    assert study_of(noisy, title="t").headline == "Take 2 GPUs: 1.5x."
    even = [run(100), run(190, 2, **cpu), run(189, 2, variable_update="replicated")]
    assert study_of(even, title="t").headline == "Take 2 GPUs: 1.9x."
    fixed = study_of([even[1], run(150, 2, variable_update="replicated")], title="t")
    assert fixed.headline.startswith("parameter_server cpu is the fastest in 1 of 1 jobs on 2 GPUs, by 27%")
    far = [run(speed, 2, machine="7gforce", gpus=gpus) for speed, gpus in ((150, [0, 5]), (190, [0, 1]))]
    machines = {"7gforce": read_bundled("7gforce")}
    study = study_of(far, title="t", machines=machines)
    assert study.headline == "Do not use GPUs 0,5 together."
    noisy = [msgspec.structs.replace(one, uncertainty=30.0) for one in far]
    assert "Do not use" not in study_of(noisy, title="t", machines=machines).headline
    several = [run(speed, n, model=model) for model, more in (("a", 191), ("b", 192), ("c", 380))
               for n, speed in ((1, 100), (2, 190), (4, more))]  # fmt: skip
    assert study_of(several, title="t").headline == "Take 2 GPUs: 1.9x, the best in 2 of 3 jobs."
    apart = [run(100), run(200, 2, variable_update="independent")]
    assert "Take" not in study_of(apart, title="t").headline


def test_jobs_are_named_by_what_differs_and_does_not_follow_from_the_machine() -> None:
    def cell(machine: str, gpu: str, batch: int) -> Measurement:
        return run(1, machine=machine, gpu=gpu, batch_per_gpu=batch)

    assert varying(cells_of([cell("a", "X", 8), cell("b", "Y", 16)])) == ("machine", "model", "batch_per_gpu")
    assert varying(cells_of([cell("a", "X", 8), cell("a", "Y", 8), cell("b", "Y", 8)])) == (
        "machine",
        "gpu",
        "model",
    )
    assert varying(cells_of([cell("a", "X", 8), cell("a", "Y", 8)])) == ("gpu", "model")


@pytest.mark.parametrize("spoilt", [{"conditions": [f"{BUSY} (97% of all cores)"]}, {"steps": 1}])
def test_a_spoilt_cell_has_its_figure_and_no_verdict(spoilt: dict[str, Any]) -> None:
    runs = [run(100), run(430, 2), run(200, precision="fp16")]
    bad = [run(one.images_per_sec, one.n_gpus, precision=one.precision, **spoilt) for one in runs]
    study = study_of(bad, title="t", earlier=runs[:1])
    assert {one.id for one in study.observations} <= {"conditions.other"}
    assert study.headline.startswith("NOT RELIABLE: all 3 cells: ")
    assert study_of(bad[:1], title="t").headline.startswith("NOT RELIABLE: ")
    assert study.figures.scalings
    assert not any(row.holds for table in study.figures.ratios for row in table.rows)
    assert not study.has_regression
    (cell,) = cells_of([bad[0], run(120)])  # repeated, so the spoilt one does not count
    assert (cell.images_per_sec, cell.spoilt) == (120, None)


def test_slow_input_is_a_bottleneck() -> None:
    real: dict[str, Any] = {"data": "real", "distortions": False}
    (words,) = says([run(300), run(100, **real)], "input.bottleneck")
    assert "3.00x" in words


def test_a_slow_gpu_is_split_into_what_its_clock_explains_and_the_rest() -> None:
    def alone(gpu: int, speed: float, mhz: float) -> Measurement:
        return run(speed, gpus=[gpu], devices=[DeviceFigure(number=gpu, graphics_mhz=mhz)])

    rows = figures_of([alone(0, 100, 1000), alone(1, 85, 950), alone(2, 97, 950)]).clocks[0].rows

    assert [row.explained_percent for row in rows[1:]] == pytest.approx([5.0, 3.0])
    assert [row.unexplained_percent for row in rows[1:]] == pytest.approx([10.0, 0.0], abs=1e-9)
    other = run(85, gpus=[1], devices=[DeviceFigure(number=1, memory_mhz=950)])  # the clock of something else
    row = figures_of([alone(0, 100, 1000), other]).clocks[0].rows[1]
    assert (row.clock_percent, row.explained_percent) == (None, None)


def test_speeds_have_the_unit_of_their_runs_and_other_units_are_not_compared() -> None:
    runs = [run(100, unit="steps"), run(190, 2, unit="steps"), run(225, 4, unit="steps")]
    study = study_of(runs[:1], title="t")
    assert study.headline.startswith("resnet50 on 1 GPU: 100 steps/sec")
    (words,) = says(runs, "scaling.stops")
    assert "190 steps/sec, 225 on 4" in words
    text = document_text(study_document(study_of(runs, title="t")), 100)
    assert "steps/sec" in text
    assert "images" not in text
    mixed = study_of([runs[0], run(190, 2)], title="t", earlier=[run(100)])
    assert not mixed.figures.scalings
    assert not mixed.figures.against
    text = document_text(study_document(mixed), 100)
    assert "per second" in text
    assert text.startswith("2 cells not compared, because their speeds have different units: images, steps.")
    assert "steps/sec" in text


def test_runs_under_the_same_other_conditions_are_one_observation() -> None:
    conditions = [["a power cap", f"{BUSY} ({batch}%)"] for batch in range(8, 16)]
    runs = [run(90, batch_per_gpu=n, conditions=words) for n, words in enumerate(conditions)]
    assert says(runs, "conditions.other") == [
        "8 runs (resnet50): a power cap.",
        f"8 runs (resnet50): {BUSY}.",
    ]


def test_only_an_earlier_run_of_the_same_version_can_be_a_regression() -> None:
    now = [run(85)]
    (same,) = against(now, [run(100)])
    (other,) = against(now, [run(100, version="2.16.1")])

    assert (same.verdict, same.is_regression, round(same.difference_percent)) == ("slower", True, -15)
    assert (other.verdict, other.is_regression) == ("slower", False)
    assert other.differs == ("version of TensorFlow",)
    study = study_of([run(85)], title="t", earlier=[run(100, version="2.16.1")])
    assert not study.has_regression
    assert study.headline == "1 of 1 cells slower than before, by up to 15%, with other software."
    assert not against(now, [run(100, machine="other")])
    more = study_of([run(99), run(190, 2)], title="t", earlier=[run(100)])
    assert more.headline.startswith(
        "0 of 1 cells are significantly slower than before. 1 cannot tell (-1%): "
    )
    assert " 1 cell has no earlier run." in more.headline


def test_the_headline_of_a_comparison_leaves_nothing_out() -> None:
    busy: dict[str, Any] = {"conditions": [f"{BUSY} (40%)"]}
    drill: dict[str, Any] = {"conditions": [f"{DRILL} (slow-gpu 0.8)"]}
    before = [run(100), run(100, model="vgg16", **busy), run(50, model="lenet")]
    now = [run(150), run(40, model="vgg16"), run(80, **drill), run(None, model="lenet", status="failed")]
    assert study_of(now, title="t", earlier=before).headline == (
        "1 of 2 cells faster than before, by up to 50%. 1 cannot tell: NOT RELIABLE before. Repeat the "
        "earlier runs. 1 cell has a drill, so not compared. 1 earlier cell has no figure now."
    )


def test_a_published_figure_is_beside_that_of_the_same_gpu_model_within_its_noise() -> None:
    published = [run(100, machine="other", framework="tf_cnn_benchmarks")]
    found = [figures_of([run(speed)], references=published).against for speed in (90, 101, 110)]
    assert [row.verdict for (row,) in found] == ["slower", "cannot tell", "faster"]
    assert not figures_of([run(100, gpu="GeForce GTX 1080")], references=published).against


def test_forty_cells_without_a_change_have_no_regression_and_one_with_a_change_has() -> None:
    chance = random.Random(1)

    def runs(*slower: int, all_by: float = 1.0) -> list[Measurement]:
        return [run(100 * all_by * (0.7 if n in slower else 1) * chance.gauss(1, 0.03), batch_per_gpu=n)
                for n in range(1, 41)]  # fmt: skip

    before = runs()
    found = [against(runs(*slower), before) for slower in ((), (7,), range(1, 15))]
    assert [sum(row.is_regression for row in rows) for rows in found] == [0, 1, 14]
    assert sum(row.is_regression for row in against(runs(all_by=0.7), before)) == 40
    study = study_of(runs(7), title="t", earlier=runs())
    assert study.has_regression
    assert "1 of 40 cells slower than before, by up to " in study.headline
    (row,) = (row for row in study.figures.against if row.is_regression)
    assert row.difference_percent < -row.noise_percent


def test_a_change_of_all_cells_below_the_noise_of_each_is_a_regression_and_no_change_is_none() -> None:
    few: dict[str, Any] = {"studies": 2, "cells": 40, "noise": 0.03, "repeats": 3}
    assert alarms(KINDS[0], **few).studies == 0
    assert alarms(KINDS[2], **few).by_pooled == 2


def test_cells_that_are_noisier_than_assumed_make_no_more_false_alarms() -> None:
    found = alarms(KINDS[0], studies=12, cells=40, noise=0.08, repeats=1, seed=2)
    assert found.studies == 0


def test_all_cells_together_are_stated_with_an_interval_and_decide() -> None:
    before = [run(100 + n % 3, batch_per_gpu=n) for n in range(20)]
    after = [run(94 + n % 4, batch_per_gpu=n) for n in range(20)]
    study = study_of(after, title="t", earlier=before)
    assert not any(row.is_regression for row in study.figures.against)
    assert study.has_regression
    assert study.headline.startswith("All 20 cells together: 5.4% slower than before (")
    assert study.observations[0].id == "earlier.regression"
    newer = study_of([run(94, batch_per_gpu=n, version="3") for n in range(20)], title="t", earlier=before)
    assert newer.figures.pooled_change is not None
    assert newer.figures.pooled_change.verdict == "slower"
    assert not newer.has_regression


@pytest.mark.parametrize("now", [91.0, 99.9])
def test_what_the_noise_of_a_run_hides_is_not_called_even(now: float) -> None:
    (row,) = against([run(now)], [run(100)])
    assert row.verdict == "cannot tell"


def test_a_cell_is_even_if_its_change_is_shown_to_be_below_the_smallest_effect() -> None:
    before, now = ([run(100.0 + n / 100)] + [run(100.0)] * 99 for n in (0, 1))
    (row,) = against(now, before)
    assert row.verdict == "even"


def test_a_difference_below_the_smallest_effect_is_none() -> None:
    before, now = ([run(speed + step / 1e4) for step in range(49)] for speed in (100, 98.4))
    assert not any(row.is_regression for row in against(now, before))
    assert any(row.is_regression for row in against(now, before, smallest_effect=0.01))


def test_what_keeps_cells_from_being_compared_is_named() -> None:
    now, drill = [run(90), run(80, 2)], run(100, conditions=[f"{DRILL} (slow-gpu 0.8)"])
    failed = run(None, status="failed", reason="out of memory")
    differ = "the runs differ in machine, number of GPUs"
    assert not_comparable(cells_of(now), [run(100, machine="other")]) == differ
    assert not_comparable(cells_of([drill]), now) == "the runs have drills"
    assert not_comparable(cells_of(now), [failed]) == "the earlier runs have no figures"


@given(
    st.lists(
        st.builds(
            run,
            st.none() | st.floats(0.1, 1e6),
            st.integers(1, 8),
            model=st.sampled_from(["resnet50", "vgg16"]),
            data=st.sampled_from(["synthetic", "real", None]),
            batch_per_gpu=st.sampled_from([16, 64, None]),
            precision=st.sampled_from(["fp32", "fp16"]),
            xla=st.none() | st.booleans(),
            cpu=st.sampled_from([None, "a", "b"]),
            variable_update=st.sampled_from([None, "independent", "replicated", "parameter_server"]),
        ),
        max_size=30,
    )
)
def test_any_measurements_make_a_study_that_survives_json(measurements: list[Measurement]) -> None:
    study = study_of(measurements, title="any")

    assert {one.id for one in study.observations} <= set(OBSERVATIONS)
    assert all(row.efficiency_percent > 0 for scaling in study.figures.scalings for row in scaling.rows)
    assert sum(len(cell.sources) + len(cell.duplicates) for cell in study.figures.cells) == len(measurements)
    assert schema.decode(schema.encode(study), type(study), origin="x") == study


def test_a_run_with_a_drill_is_neither_pooled_nor_compared_and_has_a_row_of_its_own() -> None:
    slowed = [
        run(speed, 2, source=f"runs/{n}", conditions=[f"{DRILL} (slow-gpu=1:0.9)"])
        for n, speed in enumerate((150, 151))
    ]
    study = study_of([run(100), *slowed, run(190, 2)], title="t", earlier=[run(100), *slowed])

    assert [cell.images_per_sec for cell in study.figures.cells] == [100, 190, 150, 151]
    assert [row.speedup for row in study.figures.scalings[0].rows] == [1, 1.9]
    assert [row.cell for row in study.figures.against] == [0]
    assert "No verdict" not in study.headline
    assert names_of_rows(study) == [
        "resnet50             1",
        "resnet50             2",
        "resnet50, runs/0     2",
        "resnet50, runs/1     2",
    ]


def names_of_rows(study: Study) -> list[str]:
    """The jobs and their numbers of GPUs in the table of all runs."""
    rows = section_text(study_document(study), "All runs", 150).splitlines()
    return [row.strip().rpartition("assumed")[0].rsplit(None, 2)[0] for row in rows if "assumed  " in row]
