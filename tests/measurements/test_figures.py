"""Scaling, ratios, pairs, clocks, comparisons: on small invented studies."""

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.measurements.cells import COMPARISONS, CONDITIONS, cells_of
from gputopo.measurements.figures import against_earlier, against_published, figures_of, not_comparable
from gputopo.measurements.from_ours import of_result
from gputopo.measurements.observations import OBSERVATIONS
from gputopo.measurements.published import known_machines
from gputopo.measurements.study import study_of
from gputopo.measurements.words import varying
from gputopo.runs.summary import summarise
from gputopo.values import schema
from gputopo.values.run.measurement import BUSY, DeviceFigure, Measurement
from gputopo.values.run.result import Result
from tests.invented_runs import InventedRun, gpu_devices, on_hosts, stream


def run(speed: float | None, n: int = 1, **fields: Any) -> Measurement:
    known: dict[str, Any] = {
        "source": f"run-{n}-{speed}", "machine": "box", "gpu": "GeForce GTX 1070", "model": "resnet50",
        "data": "synthetic", "batch_per_gpu": 64, "precision": "fp32", "framework": "gputopo",
        "version": "2.21.0", "n_gpus": n, "images_per_sec": speed,
    }  # fmt: skip
    return msgspec.convert({**known, **fields}, Measurement)


def says(measurements: list[Measurement], id: str) -> list[str]:
    return [one.says for one in study_of(measurements, title="t").observations if one.id == id]


def test_every_condition_is_a_field_and_every_comparison_is_of_one() -> None:
    assert set(CONDITIONS) <= set(Measurement.__struct_fields__)
    for one in COMPARISONS:
        assert {one.by, *one.free} <= set(CONDITIONS)


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
        ({"machine": "other"}, "machine"),
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
    assert "The figure of one GPU is probably too low" in baseline
    on_cpu = [run(100, backend="cpu"), run(215, 2, backend="cpu"), run(430, 4, backend="cpu")]
    (words,) = says(on_cpu, "scaling.superlinear")
    assert "GPU" not in words.replace("CPU", "")
    assert "power limit" in cause
    assert not says([run(100), run(201, 2)], "scaling.superlinear")  # within the noise


def test_where_more_gpus_stop_paying_is_named_with_both_speeds() -> None:
    (words,) = says([run(100), run(190, 2), run(225, 4)], "scaling.stops")
    assert "take 2 GPUs: 190 images/sec, 225 on 4 (+18%)" in words  # a GPU adds 17 %


def test_figures_that_differ_too_much_from_run_to_run_have_no_verdict() -> None:
    runs = [run(55), run(180), run(70), run(69, 2)]

    (words,) = says(runs, "scaling.verdict")
    assert "not clear, figures are uncertain by" in words
    assert not says(runs, "scaling.stops")


@pytest.mark.parametrize(
    ("runs", "headline"),
    [
        (
            [run(4618.4, 2)],
            "resnet50 on 2 GPUs: 4,618 images/sec, from 1 run; a second one shows how much runs differ.",
        ),
        ([run(100, source="a"), run(101, source="b")], "resnet50 on 1 GPU: 100.5 images/sec, from 2 runs."),
        (
            [run(30, backend="cpu", gpu=None), run(90, model="vgg16")],
            "The fastest of 2: vgg16 on 1 GPU: 90 images/sec.",
        ),
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
    study = study_of(far, title="t", machines=known_machines())
    assert study.headline == "Do not use GPUs 0,5 together."
    noisy = [msgspec.structs.replace(one, uncertainty=30.0) for one in far]
    assert "Do not use" not in study_of(noisy, title="t", machines=known_machines()).headline
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
    assert study.headline.startswith("No verdict on all 3 cells: ")
    assert study.figures.scalings
    assert not any(row.holds for table in study.figures.ratios for row in table.rows)
    assert not study.has_regression
    (cell,) = cells_of([bad[0], run(120)])  # repeated, so the spoilt one does not count
    assert (cell.images_per_sec, cell.spoilt) == (120, None)


def test_slow_input_is_a_bottleneck_and_more_work_that_ran_faster_an_error() -> None:
    real: dict[str, Any] = {"data": "real", "distortions": False}
    (words,) = says([run(300), run(100, **real)], "input.bottleneck")
    assert "3.00x" in words
    found = [run(100, **real), run(120, **{**real, "distortions": True})]
    (words,) = says(found, "work.more_is_faster")
    assert "by up to 20%" in words


def test_a_slow_gpu_is_split_into_what_its_clock_explains_and_the_rest() -> None:
    def alone(gpu: int, speed: float, mhz: float) -> Measurement:
        return run(speed, gpus=[gpu], devices=[DeviceFigure(number=gpu, graphics_mhz=mhz)])

    rows = figures_of([alone(0, 100, 1000), alone(1, 85, 950), alone(2, 97, 950)]).clocks[0].rows

    assert [row.explained_percent for row in rows[1:]] == pytest.approx([5.0, 3.0])
    assert [row.unexplained_percent for row in rows[1:]] == pytest.approx([10.0, 0.0], abs=1e-9)
    other = run(85, gpus=[1], devices=[DeviceFigure(number=1, memory_mhz=950)])  # the clock of something else
    row = figures_of([alone(0, 100, 1000), other]).clocks[0].rows[1]
    assert (row.clock_percent, row.explained_percent) == (None, None)


def test_cpu_devices_are_alike_and_have_no_table_of_clocks() -> None:
    devices = [DeviceFigure(number=number, images_per_sec=speed) for number, speed in enumerate((50, 40))]
    for backend, tables in (("gpu", 1), ("cpu", 0)):
        one = run(90, 2, variable_update="independent", devices=devices, backend=backend)
        assert len(figures_of([one]).clocks) == tables


def test_what_did_not_run_is_named_by_what_the_cells_share() -> None:
    cells = [run(None, status="left_out", reason="too slow", model=model) for model in ("vgg16", "vgg19")]
    assert says(cells, "cells.not_run") == ["2 cells not run: too slow."]
    assert says([run(90), *cells[:1]], "cells.not_run") == ["1 cell not run (vgg16): too slow."]


def test_runs_under_the_same_other_conditions_are_one_observation() -> None:
    conditions = [["a power cap", f"{BUSY} ({batch}%)"] for batch in range(8, 16)]
    runs = [run(90, batch_per_gpu=n, conditions=words) for n, words in enumerate(conditions)]
    assert says(runs, "conditions.other") == [
        "8 runs (resnet50): a power cap.",
        f"8 runs (resnet50): {BUSY}.",
    ]


def test_only_an_earlier_run_of_the_same_version_can_be_a_regression() -> None:
    now = cells_of([run(90)])
    (same,) = against_earlier(now, cells_of([run(100)]))
    (other,) = against_earlier(now, cells_of([run(100, version="2.16.1")]))
    (even,) = against_earlier(now, cells_of([run(91)]))

    assert (same.verdict, same.is_regression, round(same.difference_percent)) == ("slower", True, -10)
    assert (other.verdict, other.is_regression) == ("slower", False)
    assert other.differs == ("version of TensorFlow",)
    assert even.verdict == "even"
    study = study_of([run(90)], title="t", earlier=[run(100, version="2.16.1")])
    assert not study.has_regression
    assert study.headline == (
        "1 of 1 cells slower than before, by up to 10%, with other software. "
        "With one run a cell, differences below 7% are not seen: repeat the cells."
    )
    assert not against_earlier(now, cells_of([run(100, machine="other")]))
    more = study_of([run(99), run(190, 2)], title="t", earlier=[run(100)])
    assert " 1 cell has no earlier run." in more.headline


def test_a_published_figure_is_beside_that_of_the_same_gpu_model_within_its_noise() -> None:
    published = cells_of([run(100, machine="other", framework="tf_cnn_benchmarks")])
    found = [against_published(cells_of([run(speed)]), published) for speed in (90, 101, 110)]
    assert [row.verdict for (row,) in found] == ["slower", "even", "faster"]
    assert not against_published(cells_of([run(100, gpu="GeForce GTX 1080")]), published)


def test_gpu_models_are_compared_in_the_same_mode() -> None:
    for mode, tables in (("replicated", ["gpu"]), ("parameter_server", [])):
        runs = [run(100, variable_update="replicated"), run(80, gpu="GeForce GTX 1080", variable_update=mode)]
        assert [table.id for table in figures_of(runs).ratios] == tables


def test_forty_cells_without_a_change_have_no_regression_and_one_with_a_change_has() -> None:
    chance = random.Random(1)

    def runs(*slower: int, all_by: float = 1.0) -> list[Measurement]:
        return [run(100 * all_by * (0.7 if n in slower else 1) * chance.gauss(1, 0.03), batch_per_gpu=n)
                for n in range(1, 41)]  # fmt: skip

    before = cells_of(runs())
    found = [against_earlier(cells_of(runs(*slower)), before) for slower in ((), (7,), range(1, 15))]
    assert [sum(row.is_regression for row in rows) for rows in found] == [0, 1, 14]
    assert sum(row.is_regression for row in against_earlier(cells_of(runs(all_by=0.7)), before)) == 40
    study = study_of(runs(7), title="t", earlier=runs())
    assert study.has_regression
    assert study.headline.startswith("1 of 40 cells slower than before, by up to ")
    (row,) = (row for row in study.figures.against if row.is_regression)
    assert row.difference_percent < -row.noise_percent
    for count, regressions in ((7, 0), (8, 8)):  # of few cells the spread shows no noise
        now, then = (
            cells_of(run(speed + n / 100, batch_per_gpu=n) for n in range(count)) for speed in (95, 100)
        )
        assert sum(row.is_regression for row in against_earlier(now, then)) == regressions
    few = [against_earlier(cells_of(runs()[:4]), cells_of(runs()[:4])) for _ in range(40)]
    assert sum(any(row.is_regression for row in rows) for rows in few) <= 6


def test_a_difference_below_the_smallest_effect_is_none() -> None:
    repeats = [[run(speed + step / 1e4) for step in range(9)] for speed in (100, 98.4)]
    before, now = map(cells_of, repeats)
    assert not any(row.is_regression for row in against_earlier(now, before))
    assert any(row.is_regression for row in against_earlier(now, before, 0.01))


def test_what_keeps_cells_from_being_compared_is_named() -> None:
    now = cells_of([run(90), run(80, 2)])
    assert not_comparable(now, cells_of([run(100, machine="other")])) == "machine, number of GPUs"


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


def test_gpus_of_several_hosts_are_named_by_tower_as_their_numbers_are_of_different_hosts() -> None:
    for devices, gpus in ((gpu_devices(2), (0, 1)), (on_hosts(gpu_devices(1), gpu_devices(1)), ())):
        found = of_result(summarise(stream(devices, InventedRun(2).steps(5))), source="s")
        assert (found.gpus, found.n_gpus) == (gpus, 2)
        assert [one.number for one in found.devices] == [0, 1]


def test_a_run_with_faults_that_were_asked_for_is_compared_with_no_other() -> None:
    whole = Result(status="complete", exit_code=0, spec={"model": "alexnet"}, backend="cpu")
    drill = msgspec.structs.replace(
        whole, spec={**whole.spec, "drills": [{"fault": "slow-gpu", "device": 1}]}
    )
    methods = [of_result(one, source="s").method for one in (whole, drill)]
    assert methods == [None, "drill slow-gpu"]
