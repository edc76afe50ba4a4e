"""Whole sessions with the real engine and the real cuda.bindings, on doubles of both libraries."""

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gputopo.values.bandwidth import LARGE_BYTES, Bandwidth
from gputopo.values.machine import Machine
from gputopo.values.schema import as_text, from_text
from tests.kit.cuda.build import why_not
from tests.kit.cuda.derive import from_scenario
from tests.kit.cuda.layouts import named
from tests.kit.cuda.scenario import CudaSpec, PathKind
from tests.kit.cuda.session import run_program
from tests.kit.cuda.words import spoilt
from tests.kit.machines import read
from tests.probes.session.worker import Outcome, Task

pytestmark = [
    pytest.mark.sessions,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

WITHIN = 0.03  # what gputopo promises on the double
ALL = "h2d,d2h,bidirectional,p2p_direct,p2p_staged,d2d_local,latency"
# Cards are small, since the double keeps what is copied in memory; time is virtual.
SMALL_CARDS = f"memory={96 * 2**20}"


def spec(name: str, *words: str) -> CudaSpec:
    """Return a machine whose copies begin at once and pass no cache: those of these tests are small."""
    return spoilt(from_scenario(named(name)), ("start=0", "cache=1", *words))


@cache
def machine(name: str) -> Machine:
    with tempfile.TemporaryDirectory() as folder:
        return read(named(name), Path(folder))


@cache
def session(
    name: str, kinds: str, gpus: tuple[int, ...] | None, *words: str, size: int = LARGE_BYTES
) -> Outcome:
    task = Task(
        scenario=name,
        machine=machine(name),
        kinds=tuple(kinds.split(",")),
        gpus=gpus,
        size=size,
        by_the_clock=any(word.startswith("wakeup") for word in words),
    )
    worker = "-m", "tests.probes.session.worker"
    on = spec(name, SMALL_CARDS, *words)
    done = run_program(on, *worker, given=msgspec.json.encode(task, enc_hook=as_text))
    assert done.returncode == 0, done.stderr
    return msgspec.json.decode(done.stdout, type=Outcome, dec_hook=from_text)


def measured(name: str, kinds: str = ALL, gpus: tuple[int, ...] | None = None, *words: str) -> Bandwidth:
    return session(name, kinds, gpus, *words).bandwidth


def the(found: Bandwidth, **facts: Any) -> Any:
    (sample,) = [
        one
        for one in found.samples
        if all(getattr(one, name, None) == value for name, value in ({"group": None} | facts).items())
    ]
    return sample


@pytest.mark.parametrize("gpu", [1, 2])
def test_what_was_set_is_measured_for_each_kind_with_the_host(gpu: int) -> None:
    found, box, place = measured("chipset", ALL, (1, 2)), spec("chipset"), f"gpu:{gpu}"
    ways: list[tuple[PathKind, dict[str, Any]]] = [
        ("h2d", {"destination": place, "pinned": True}),
        ("d2h", {"source": place, "pinned": True}),
        ("h2d_pageable", {"destination": place, "pinned": False}),
        ("d2h_pageable", {"source": place, "pinned": False}),
    ]
    for kind, facts in ways:
        sample = the(found, kind=kind.removesuffix("_pageable"), **facts)
        assert sample.median_gb_per_s == pytest.approx(box.rate(kind, gpu) / 1e9, rel=WITHIN), kind
    local = the(found, kind="d2d_local", source=place).median_gb_per_s
    assert local == pytest.approx(2 * box.rate("local", gpu) / 1e9, rel=WITHIN)
    both = the(found, kind="bidirectional", source="host", destination=place).median_gb_per_s
    assert both == pytest.approx((box.rate("h2d", gpu) + box.rate("d2h", gpu)) / 1e9, rel=WITHIN)


@pytest.mark.parametrize(("a", "b"), [(1, 2), (2, 1)])
def test_what_was_set_is_measured_for_each_kind_between_gpus(a: int, b: int) -> None:
    found, box = measured("chipset", ALL, (1, 2)), spec("chipset")
    ends = {"source": f"gpu:{a}", "destination": f"gpu:{b}"}
    methods: dict[str, PathKind] = {"copy_engine": "p2p", "kernel_read": "read", "kernel_write": "write"}
    for method, kind in methods.items():
        rate = box.rate(kind, a, b)
        sample = the(found, kind="p2p_direct", method=method, **ends)
        assert sample.median_gb_per_s == pytest.approx(rate / 1e9, rel=WITHIN), method
    staged = the(found, kind="p2p_staged", **ends).median_gb_per_s
    slower = min(box.rate("d2h", a), box.rate("h2d", b))
    assert staged == pytest.approx(slower / 1e9, rel=WITHIN)
    assert the(found, kind="latency", path="direct", **ends).median_us == pytest.approx(
        box.routes["read", a, b].chase_ns / 1000, rel=WITHIN
    )


def test_every_number_carries_its_conditions_and_nothing_is_amiss() -> None:
    found = measured("chipset", ALL, (1, 2))
    assert (found.failures, found.not_measured, found.complete) == ((), (), True)
    for sample in found.samples:
        assert {one.gpu for one in sample.conditions} == set(sample.gpus)
        assert all(one.pstate == "P0" and one.pcie_gen for one in sample.conditions)
        assert all(one.readings + one.readings_beside for one in sample.conditions)


def test_shared_uplinks_are_found_and_agree_with_the_tree() -> None:
    found = measured("chipset", "h2d,d2h", (1, 2, 3))
    assert [(group.gpus, group.agrees) for group in found.uplink_groups] == [((2, 3), True)]


def test_cards_in_ramp_up_get_the_numbers_of_full_clocks() -> None:
    found, box = measured("chipset", "h2d,d2d_local", (0, 1), "wakeup=40"), spec("chipset")
    for gpu in (0, 1):
        up = the(found, kind="h2d", destination=f"gpu:{gpu}", pinned=True).median_gb_per_s
        assert up == pytest.approx(box.rate("h2d", gpu) / 1e9, rel=WITHIN)
        local = the(found, kind="d2d_local", source=f"gpu:{gpu}").median_gb_per_s
        assert local == pytest.approx(2 * box.rate("local", gpu) / 1e9, rel=WITHIN)
    said = any("clock ramp-up" in note for note in found.notes)
    assert said or any(sample.discarded_gb_per_s for sample in found.copies)


def test_eight_gpus_need_less_host_memory_than_promised() -> None:
    outcome = session("8two", "h2d,d2h", None, size=2 << 20)
    on_cards = 8 * 96 * 2**20  # the double's device memory is the process's
    assert outcome.peak_bytes - on_cards < 1.5 * 2**30
