"""One box over time: a fall is dated, noise and other conditions are none."""

import random
from collections.abc import Callable, Sequence

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gputopo.measurements import history_of_box
from gputopo.report import box_document, document_markdown
from gputopo.runs import Past, Saved
from gputopo.topology import fingerprint
from gputopo.values.bandwidth import Bandwidth, Samples
from gputopo.values.box import Box, Worsening
from gputopo.values.run.result import DeviceResult, Result, Throughput
from tests import there
from tests.invented_bandwidths import machine_with, pair
from tests.invented_runs import gpu_devices
from tests.report.shown import section_text

DAY_S = 86400.0
MACHINE = machine_with(2)


def box_of(*runs: Past, elsewhere: int = 0) -> Box:
    """The history of a machine, given its oldest runs first, and runs of another machine."""
    others = [msgspec.structs.replace(run(0, 1.0), fingerprint="another")] * elsewhere
    return history_of_box(MACHINE, [*reversed(runs), *others], ())


def rated(rates: Sequence[float]) -> Box:
    """The history of a machine of which the copies from GPU 0 to 1 were measured once a day."""
    saved = (
        Saved(
            bandwidth=Bandwidth(source="live", samples=Samples((pair(0, 1, rate),))),
            machine=MACHINE,
            saved_at=DAY_S * day,
        )
        for day, rate in enumerate(rates)
    )
    return history_of_box(MACHINE, (), saved)


def change_of(rates: Sequence[float]) -> Worsening | None:
    return next(iter(rated(rates).changes), None)


def run(day: int, speed: float, **more: object) -> Past:
    """A run of alexnet on two GPUs, of which GPU 1 has what is above 500 of half of the speed."""
    rows = tuple(
        DeviceResult(device=device, batch_size=64, images_per_sec=pace)
        for device, pace in zip(gpu_devices(2), (500.0, speed / 2), strict=True)
    )
    result = Result(
        status="complete",
        exit_code=0,
        spec={"model": "alexnet"},
        backend="gpu",
        batch_size=64,
        throughput=Throughput(mean=speed, uncertainty=0.0, jitter=0.0, median=speed, total=speed),
        devices=rows,
    )
    return Past(
        result=msgspec.structs.replace(result, **more),
        finished_at=DAY_S * day,
        folder=f"/runs/{day}",
        fingerprint=there(fingerprint(MACHINE)),
    )


@pytest.mark.parametrize(("fall", "noise"), [(0.08, 0.01), (0.3, 0.002)])
def test_a_fall_is_found_with_its_day_and_its_size(fall: float, noise: float) -> None:
    chance = random.Random(7)
    change = there(change_of([12.0 * chance.gauss(1, noise) * (1 - fall * (day >= 9)) for day in range(16)]))
    assert change.since_s == 9 * DAY_S
    assert change.percent == pytest.approx(100 * fall, abs=200 * noise)
    assert change.noise_percent < change.percent
    assert (change.measurements_before, change.measurements_after) == (9, 7)
    assert change.what.startswith("GPU 0 to GPU 1")


def found_of(make: Callable[[random.Random], list[float]]) -> int:
    """Of 30 series, those with a change."""
    chance = random.Random(3)
    return sum(change_of(make(chance)) is not None for _ in range(30))


@pytest.mark.parametrize(("place", "times"), [(0, 1.0), (5, 0.6)])
def test_even_series_have_no_change_also_with_one_outlier(place: int, times: float) -> None:
    def even(chance: random.Random) -> list[float]:
        values = [chance.gauss(1, 0.025) for _ in range(chance.randint(6, 25))]
        values[place] *= times
        return values

    assert found_of(even) == 0


@pytest.mark.parametrize(
    ("low", "good", "noise", "least"),
    [((5, 12), 0, 0.03, 27), ((3, 3), 1, 0.02, 26)],
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
    assert change_of(values) is None
    assert rated([10.0, 10.0, 1.0]).to_repeat == ()


@example(100.0, 0.029)
@given(st.floats(0.1, 1e4), st.floats(0.0, 0.0297))
def test_a_difference_that_two_runs_may_have_is_none(value: float, fall: float) -> None:
    assert change_of([value] * 20 + [value * (1 - fall)] * 20) is None


@pytest.mark.parametrize(
    "rates",
    [
        [10.0] * 20 + [7.0] * 20 + [10.0] * 3,
        [7.0] * 5 + [10.0] * 5,
    ],
)
def test_what_recovered_or_rose_is_not_worse(rates: list[float]) -> None:
    assert change_of(rates) is None


def test_one_outlier_makes_no_change_and_hides_none() -> None:
    chance = random.Random(5)
    values = [chance.gauss(1, 0.01) * (1 if day < 6 else 0.9) for day in range(13)]
    values[10] = 1.0
    assert there(change_of(values)).since_s == 6 * DAY_S
    last = rated([chance.gauss(1, 0.01) for _ in range(8)] + [0.6])
    (low,) = last.to_repeat
    assert last.changes == ()
    assert low.percent == pytest.approx(40, abs=3)


def test_runs_under_other_conditions_or_that_failed_are_no_change() -> None:
    before = [run(day, 1000.0) for day in range(4)]
    changed: dict[str, dict[str, object]] = {
        "other": {"batch_size": 8},
        "rehearsed": {"rehearsal_of": "7gforce"},
        "failed": {"status": "failed"},
    }
    for more in changed.values():
        assert box_of(*before, *(run(day, 500.0, **more) for day in range(4, 8))).changes == ()


def test_an_upgrade_is_an_event_in_the_series_and_named_with_the_fall() -> None:
    old, new = {"tensorflow": "2.20"}, {"tensorflow": "2.21"}
    box = box_of(
        *(run(day, 1000.0, versions=old) for day in range(4)),
        *(run(day, 800.0, versions=new) for day in range(4, 8)),
    )
    assert [one.says for one in box.events] == ["TensorFlow 2.20 to 2.21"]
    assert {one.with_events for one in box.changes} == {("TensorFlow 2.20 to 2.21",)}
    document = box_document(box, pictures=True)
    assert "with TensorFlow 2.20 to 2.21" in document.headline
    assert "TensorFlow 2.20 to 2.21" in document.pictures[0].svg


def test_the_document_has_what_is_worse_once_and_every_run() -> None:
    runs = [run(day, 1000.0 if day < 4 else 800.0) for day in range(8)]
    box = box_of(*runs, elsewhere=30)
    assert {change.since_s for change in box.changes} == {4 * DAY_S}
    assert {change.what.partition(" in ")[0] for change in box.changes} == {
        "GPU 1",
        "alexnet, batch 64, fp32, parameter_server, 2 GPUs 0,1",
    }
    document = box_document(box, pictures=True)
    assert "30 runs on other hardware" in document.summary
    assert [part.title for part in document.sections] == ["What is worse", "Speeds", "Runs"]
    assert "20% lower since 1970-01-05" in document.headline
    assert section_text(document, "What is worse", 300).strip().endswith("Of its devices: GPU 1 20%.")
    text = document_markdown(document)
    assert all(f"/runs/{day}" in text for day in range(8))
    (picture,) = document.pictures
    assert "20% lower" in picture.alt


@pytest.mark.parametrize(
    ("speeds", "words"),
    [
        ([1000.0] * 4 + [600.0], "repeat it"),
        ([1000.0] * 4, "Too few"),
        ([1000.0] * 6, "Nothing became worse"),
    ],
)
def test_the_headline_of_a_box_where_nothing_fell_for_good(speeds: list[float], words: str) -> None:
    box = box_of(*(run(day, speed) for day, speed in enumerate(speeds)))
    assert words in box_document(box).headline
