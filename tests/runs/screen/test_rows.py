"""What the runs of a screen say of each device."""

import msgspec
import pytest

from gputopo.runs.screen import device_rows, outliers
from gputopo.values.run.several_runs import InRun, Reading, Screen, ScreenDevice, ScreenRun
from gputopo.values.run.verdict import Verdict

NAMES = dict.fromkeys(range(6), "GeForce GTX 1070")
# Rounds of one GPU differ by a few parts in a thousand, not alike on all GPUs.
WOBBLE = (1.0, 1.002, 0.999)


def runs(
    speeds: dict[int, float], clocks: dict[int, float] | None = None, rounds: int = 3
) -> tuple[ScreenRun, ...]:
    return tuple(
        ScreenRun(
            kind="alone",
            round=number + 1,
            mode="parameter_server cpu",
            folder=f"screen/alone-{gpu}-{number + 1}",
            devices=(
                InRun(
                    number=gpu, images_per_sec=speed, reading=Reading(graphics_mhz=(clocks or {}).get(gpu))
                ),
            ),
            images_per_sec=speed * WOBBLE[(number + gpu) % 3],
            noise=0.001,
        )
        for number in range(rounds)
        for gpu, speed in speeds.items()
    )


def screen_of(found: tuple[ScreenRun, ...]) -> Screen:
    return Screen(
        model="alexnet",
        batch_size=512,
        backend="gpu",
        says=(),
        devices=(),
        runs=found,
        seconds=1.0,
        quick=False,
        complete=True,
    )


def by_number(rows: tuple[ScreenDevice, ...]) -> dict[int, ScreenDevice]:
    return {row.number: row for row in rows}


def test_the_published_table_is_made_anew_with_its_unexplained_part() -> None:
    speeds = {0: 1560.0, 1: 1320.6, 2: 1541.7, 3: 1474.8, 4: 1558.0, 5: 1557.0}
    clocks = {0: 1885.0, 1: 1790.0, 2: 1873.0, 3: 1790.0, 4: 1885.0, 5: 1880.0}
    rows = by_number(device_rows(NAMES, runs(speeds, clocks)))
    assert {number for number, row in rows.items() if row.word == "slow"} == {1, 3}
    assert rows[2].word == "even"
    assert rows[1].percent_of_best == pytest.approx(84.65, abs=0.2)
    causes = rows[3].causes
    assert causes is not None
    assert [one.id for one in causes.found] == ["core-clock"]
    assert "Possible cause: core clock 1,790 MHz" in rows[3].says
    assert rows[1].explained_percent == pytest.approx(4.5, abs=0.2)
    assert rows[1].unexplained_percent == pytest.approx(10.7, abs=0.4)
    assert "unexplained" in rows[1].says
    assert [row.number for row in outliers(tuple(rows.values()))] == [1, 3]


def test_a_gpu_ahead_of_its_peer_is_even() -> None:
    rows = by_number(device_rows({0: "A", 1: "A"}, runs({0: 110.0, 1: 100.0})))
    assert (rows[0].word, rows[1].word) == ("even", "slow")
    assert rows[0].says == "GPU 0 is not slower than GPU 1"


def test_one_round_alone_leaves_it_open_and_the_run_of_all_at_once_decides() -> None:
    alone = runs({0: 100.0, 1: 80.0}, rounds=1)
    rows = by_number(device_rows({0: "A", 1: "A"}, alone))
    assert [row.word for row in rows.values()] == ["cannot tell"] * 2
    words = {0: Verdict(word="even", says=""), 1: Verdict(word="slow", says="")}
    devices = tuple(InRun(number=gpu, verdict=verdict) for gpu, verdict in words.items())
    at_once = ScreenRun(kind="independent", round=1, mode="independent", folder="x", devices=devices)
    rows = by_number(device_rows({0: "A", 1: "A"}, (*alone, at_once)))
    assert [row.word for row in rows.values()] == ["even", "slow"]


def test_gpus_of_other_models_are_no_peers() -> None:
    rows = device_rows({0: "A", 1: "B"}, runs({0: 100.0, 1: 50.0}))
    assert [row.word for row in rows] == ["cannot tell"] * 2
    assert rows[1].says == "GPU 1 cannot be compared: no other GPU of its kind was run"


def test_rounds_that_differ_much_leave_it_open() -> None:
    noisy = tuple(
        msgspec.structs.replace(run, images_per_sec=(run.images_per_sec or 0) * (1 + 0.1 * (place % 4 == 1)))
        for place, run in enumerate(runs({0: 100.0, 1: 96.0}))
    )
    assert by_number(device_rows({0: "A", 1: "A"}, noisy))[1].word == "cannot tell"


def test_a_gpu_that_became_slower_than_in_the_last_screen_is_named() -> None:
    last = screen_of(runs({0: 100.0, 1: 100.0}))
    rows = by_number(device_rows({0: "A", 1: "A"}, runs({0: 99.0, 1: 93.0}), last))
    assert [row.slower for row in rows.values()] == [False, True]
    assert "7.0 % slower than in the last screen" in rows[1].says


def test_a_gpu_that_could_not_be_run_has_its_reason() -> None:
    failed = msgspec.structs.replace(
        runs({1: 1.0})[0], images_per_sec=None, noise=None, failure="out of memory"
    )
    rows = by_number(device_rows({0: "A", 1: "A"}, (*runs({0: 100.0}), failed)))
    assert rows[1].says == "GPU 1 could not be run alone: out of memory"
    assert rows[1].alone is None
