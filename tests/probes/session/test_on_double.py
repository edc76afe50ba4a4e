"""Whole sessions with the real engine and the real cuda.bindings, on doubles of both libraries."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from gputopo.probes import SessionRequest
from gputopo.values.bandwidth import LARGE_BYTES, Bandwidth
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
CARD_BYTES = 96 * 2**20  # cards are small: the double keeps what is copied in memory; time is virtual


def spec(name: str) -> CudaSpec:
    """Return a machine whose copies begin at once and pass no cache: those of these tests are small."""
    return spoilt(from_scenario(named(name)), (f"memory={CARD_BYTES}", "start=0", "cache=1"))


def session(name: str, folder: Path, gpus: tuple[int, ...], size: int) -> Outcome:
    """Measure copies of one size between these GPUs."""
    request = SessionRequest(gpus=gpus, sizes=(size,), loops=2)
    task = Task(scenario=name, machine=read(named(name), folder), request=request)
    worker = "-m", "tests.probes.session.worker"
    done = run_program(spec(name), *worker, given=msgspec.json.encode(task, enc_hook=as_text))
    assert done.returncode == 0, done.stderr
    return msgspec.json.decode(done.stdout, type=Outcome, dec_hook=from_text)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Bandwidth:
    return session("chipset", tmp_path_factory.mktemp("root"), (1, 2), LARGE_BYTES).bandwidth


def the(found: Bandwidth, **facts: Any) -> Any:
    (sample,) = [
        one
        for one in found.samples
        if all(getattr(one, name, None) == value for name, value in ({"group": None} | facts).items())
    ]
    return sample


@pytest.mark.parametrize("gpu", [1, 2])
def test_what_was_set_is_measured_for_each_kind_with_the_host(measured: Bandwidth, gpu: int) -> None:
    box, place = spec("chipset"), f"gpu:{gpu}"
    ways: list[tuple[PathKind, dict[str, Any]]] = [
        ("h2d", {"destination": place, "pinned": True}),
        ("d2h", {"source": place, "pinned": True}),
        ("h2d_pageable", {"destination": place, "pinned": False}),
        ("d2h_pageable", {"source": place, "pinned": False}),
    ]
    for kind, facts in ways:
        sample = the(measured, kind=kind.removesuffix("_pageable"), **facts)
        assert sample.median_gb_per_s == pytest.approx(box.rate(kind, gpu) / 1e9, rel=WITHIN), kind
    local = the(measured, kind="d2d_local", source=place).median_gb_per_s
    assert local == pytest.approx(2 * box.rate("local", gpu) / 1e9, rel=WITHIN)
    both = the(measured, kind="bidirectional", source="host", destination=place).median_gb_per_s
    assert both == pytest.approx((box.rate("h2d", gpu) + box.rate("d2h", gpu)) / 1e9, rel=WITHIN)


@pytest.mark.parametrize(("a", "b"), [(1, 2), (2, 1)])
def test_what_was_set_is_measured_for_each_kind_between_gpus(measured: Bandwidth, a: int, b: int) -> None:
    box, ends = spec("chipset"), {"source": f"gpu:{a}", "destination": f"gpu:{b}"}
    methods: dict[str, PathKind] = {"copy_engine": "p2p", "kernel_read": "read", "kernel_write": "write"}
    for method, kind in methods.items():
        rate = box.rate(kind, a, b)
        sample = the(measured, kind="p2p_direct", method=method, **ends)
        assert sample.median_gb_per_s == pytest.approx(rate / 1e9, rel=WITHIN), method
    staged = the(measured, kind="p2p_staged", **ends).median_gb_per_s
    slower = min(box.rate("d2h", a), box.rate("h2d", b))
    assert staged == pytest.approx(slower / 1e9, rel=WITHIN)
    assert the(measured, kind="latency", path="direct", **ends).median_us == pytest.approx(
        box.routes["read", a, b].chase_ns / 1000, rel=WITHIN
    )


def test_every_number_carries_its_conditions_and_nothing_is_amiss(measured: Bandwidth) -> None:
    assert (measured.failures, measured.not_measured, measured.complete) == ((), (), True)
    for sample in measured.samples:
        assert {one.gpu for one in sample.conditions} == set(sample.gpus)
        assert all(one.pstate == "P0" and one.pcie_gen for one in sample.conditions)
        assert all(one.readings + one.readings_beside for one in sample.conditions)


def test_gpus_on_two_nodes_need_less_host_memory_than_promised(tmp_path: Path) -> None:
    gpus = (0, 4)
    outcome = session("8two", tmp_path, gpus, 2**21)
    on_cards = len(gpus) * CARD_BYTES  # the double's device memory is the process's
    assert outcome.peak_bytes - on_cards < 1.5 * 2**30
