"""One box over time: a fall is dated, noise and other conditions are none."""

import random
from collections.abc import Callable, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.measurements.box import MIN_CHANGE, box_of, change_of, low_last
from gputopo.report import box_document, document_markdown
from gputopo.report.document import Bullets
from gputopo.runs.history import Saved
from gputopo.values.bandwidth import Bandwidth, Samples
from gputopo.values.box import Point, Series
from gputopo.values.run.measurement import DeviceFigure, Measurement
from tests import there
from tests.invented_bandwidths import machine_with, pair


def series_of(values: Sequence[float]) -> Series:
    """A value a day."""
    return Series(
        what="x", unit="GB/s", points=tuple(Point(86400.0 * day, value) for day, value in enumerate(values))
    )


def run(day: int, speed: float, **more: object) -> Measurement:
    """A run of alexnet on two GPUs, of which GPU 1 has half of what is above 900."""
    paces = (500.0, speed / 2)
    devices = tuple(DeviceFigure(number=gpu, images_per_sec=pace) for gpu, pace in enumerate(paces))
    one = Measurement(
        source=f"/runs/{day}",
        model="alexnet",
        n_gpus=2,
        gpus=(0, 1),
        backend="gpu",
        batch_per_gpu=64,
        images_per_sec=speed,
        devices=devices,
        time_s=86400.0 * day,
    )
    return msgspec.structs.replace(one, **more)


@pytest.mark.parametrize("noise", [0.002, 0.01])
@pytest.mark.parametrize("fall", [0.08, 0.3])
def test_a_fall_is_found_with_its_day_and_its_size(fall: float, noise: float) -> None:
    chance = random.Random(7)
    values = [12.0 * chance.gauss(1, noise) * (1 - fall if day >= 9 else 1) for day in range(16)]
    change = there(change_of(series_of(values)))
    assert change.since_s == 9 * 86400.0
    assert change.percent == pytest.approx(100 * fall, abs=200 * noise)
    assert change.noise_percent < change.percent
    assert (change.measurements_before, change.measurements_after) == (9, 7)


def found_of(make: Callable[[random.Random], list[float]]) -> int:
    """Of 200 series, those with a change."""
    chance = random.Random(3)
    return sum(change_of(series_of(make(chance))) is not None for _ in range(200))


@pytest.mark.parametrize(("place", "times"), [(0, 1.0), (-1, 0.7), (5, 0.6), (5, 1.4)])
def test_even_series_have_no_change_also_with_one_outlier(place: int, times: float) -> None:
    def even(chance: random.Random) -> list[float]:
        values = [chance.gauss(1, 0.025) for _ in range(chance.randint(6, 40))]
        values[place] *= times
        return values

    assert found_of(even) == 0


@pytest.mark.parametrize(
    ("low", "good", "noise", "least"),
    [((5, 12), 0, 0.03, 185), ((5, 12), 1, 0.03, 170), ((3, 3), 0, 0.03, 140), ((3, 3), 1, 0.02, 180)],
)
def test_a_fall_by_a_tenth_is_found_in_most_series(
    low: tuple[int, int], good: int, noise: float, least: int
) -> None:
    def fell(chance: random.Random) -> list[float]:
        counts = ((chance.randint(5, 20), 1.0), (chance.randint(*low), 0.9), (good, 1.0))
        return [chance.gauss(level, noise) for count, level in counts for _ in range(count)]

    assert found_of(fell) >= least


@given(st.lists(st.floats(0.1, 1e4), max_size=5))
def test_few_measurements_have_none(values: list[float]) -> None:
    assert change_of(series_of(values)) is None
    assert low_last(series_of([10.0, 10.0, 1.0])) is None


@given(st.floats(0.1, 1e4), st.floats(0.0, MIN_CHANGE * 0.99))
def test_a_difference_that_two_runs_may_have_is_none(value: float, fall: float) -> None:
    assert change_of(series_of([value] * 5 + [value * (1 - fall)] * 5)) is None


def test_what_recovered_or_rose_is_not_worse() -> None:
    assert change_of(series_of([10.0] * 5 + [7.0] * 3 + [10.0] * 5)) is None
    assert change_of(series_of([10.0] * 20 + [7.0] * 20 + [10.0] * 3)) is None
    assert change_of(series_of([7.0] * 5 + [10.0] * 5)) is None


def test_one_outlier_makes_no_change_and_hides_none() -> None:
    chance = random.Random(5)
    values = [chance.gauss(1, 0.01) * (1 if day < 6 else 0.9) for day in range(13)]
    values[10] = 1.0
    change = there(change_of(series_of(values)))
    assert change.since_s == 6 * 86400.0
    last = series_of([chance.gauss(1, 0.01) for _ in range(8)] + [0.6])
    assert change_of(last) is None
    low = there(low_last(last))
    assert low.percent == pytest.approx(40, abs=3)


def test_a_gpu_that_became_slower_is_named_with_the_run_it_was_in() -> None:
    box = box_of("a box", [run(day, 1000.0 if day < 4 else 800.0) for day in range(8)])
    assert {change.what.partition(" in ")[0] for change in box.changes} == {
        "GPU 1",
        "alexnet, batch 64, 2 GPUs 0,1",
    }
    assert {change.since_s for change in box.changes} == {4 * 86400.0}


def test_runs_under_other_conditions_or_that_failed_are_no_change() -> None:
    before = [run(day, 1000.0) for day in range(4)]
    other = [run(day, 500.0, batch_per_gpu=8) for day in range(4, 8)]
    capped = [run(day, 500.0, conditions=("power cap",)) for day in range(4, 8)]
    failed = [run(day, 500.0, status="failed", reason="out of memory") for day in range(4, 8)]
    for after in (other, capped, failed):
        assert box_of("a box", before + after).changes == ()


def test_a_link_that_fell_is_dated_from_saved_bandwidths() -> None:
    saved = [
        Saved(
            bandwidth=Bandwidth(source="live", samples=Samples((pair(0, 1, 12.0 if day < 3 else 6.0),))),
            machine=machine_with(2),
            saved_at=86400.0 * day,
        )
        for day in range(6)
    ]
    (change,) = box_of("a box", [], saved).changes
    assert (change.before, change.after, change.since_s) == (12.0, 6.0, 3 * 86400.0)
    assert change.what.startswith("GPU 0 to GPU 1")


def test_an_upgrade_is_an_event_in_the_series_and_named_with_the_fall() -> None:
    runs = [
        run(day, 1000.0 if day < 4 else 800.0, version="2.20" if day < 4 else "2.21", framework="gputopo")
        for day in range(8)
    ]
    box = box_of("a box", runs)
    assert [one.says for one in box.events] == ["TensorFlow 2.20 to 2.21"]
    assert {one.with_events for one in box.changes} == {("TensorFlow 2.20 to 2.21",)}
    document = box_document(box, pictures=True)
    assert "with TensorFlow 2.20 to 2.21" in document.headline
    assert "TensorFlow 2.20 to 2.21" in document.pictures[0].svg


def test_the_document_has_what_is_worse_once_and_every_run() -> None:
    runs = [run(day, 1000.0 if day < 4 else 800.0) for day in range(8)]
    document = box_document(box_of("a box", runs, elsewhere=30), pictures=True)
    assert "30 runs on other hardware" in document.summary
    assert [part.title for part in document.sections] == ["What is worse", "Speeds", "Runs"]
    assert "20% lower since 1970-01-05" in document.headline
    worse = document.sections[0].blocks[0]
    assert isinstance(worse, Bullets)
    (words,) = worse.items
    assert words.endswith("Of its devices: GPU 1 20%.")
    text = document_markdown(document)
    assert all(f"/runs/{day}" in text for day in range(8))
    (picture,) = document.pictures
    assert "20% lower" in picture.alt
    assert "repeat it" in box_document(box_of(None, [*runs[:4], run(9, 600.0)])).headline
    assert "Too few" in box_document(box_of(None, runs[:4])).headline
    assert (
        "Nothing became worse" in box_document(box_of(None, [run(day, 1000.0) for day in range(6)])).headline
    )
