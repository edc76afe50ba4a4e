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
from tests.kit.cuda.scenario import PathKind
from tests.kit.cuda.session import run_program
from tests.kit.cuda.words import spoilt
from tests.kit.machines import read
from tests.probes.session.worker import Task

pytestmark = [
    pytest.mark.sessions,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

WITHIN = 0.03  # what gputopo promises on the double
CARD_BYTES = 96 * 2**20  # cards are small: the double keeps what is copied in memory; time is virtual
HOST_KINDS: tuple[tuple[str, PathKind, bool], ...] = (
    ("h2d", "h2d", True),
    ("d2h", "d2h", True),
    ("h2d", "h2d_pageable", False),
    ("d2h", "d2h_pageable", False),
)
METHODS: dict[str, PathKind] = {"copy_engine": "p2p", "kernel_read": "read", "kernel_write": "write"}


def test_each_rate_of_a_session_is_the_one_that_was_set_and_has_its_conditions(tmp_path: Path) -> None:
    # Copies begin at once and pass no cache: those of this test are small.
    scenario = named("chipset")
    box = spoilt(from_scenario(scenario), (f"memory={CARD_BYTES}", "start=0", "cache=1"))
    request = SessionRequest(gpus=(1, 2), sizes=(LARGE_BYTES,), loops=1)
    task = Task(scenario="chipset", machine=read(scenario, tmp_path), request=request)
    given = msgspec.json.encode(task, enc_hook=as_text)
    done = run_program(box, "-m", "tests.probes.session.worker", given=given)
    assert done.returncode == 0, done.stderr
    found = msgspec.json.decode(done.stdout, type=Bandwidth, dec_hook=from_text)

    def the(kind: str, **facts: Any) -> Any:
        facts |= {"kind": kind, "group": None}
        (sample,) = [
            one
            for one in found.samples
            if all(getattr(one, name, None) == value for name, value in facts.items())
        ]
        return sample

    def rate(kind: PathKind, a: int, b: int = 0, *, times: float = 1.0) -> Any:
        return pytest.approx(times * box.rate(kind, a, b) / 1e9, rel=WITHIN)

    for gpu in (1, 2):
        place = f"gpu:{gpu}"
        for kind, way, pinned in HOST_KINDS:
            end = {"destination" if kind == "h2d" else "source": place}
            assert the(kind, pinned=pinned, **end).median_gb_per_s == rate(way, gpu), way
        assert the("d2d_local", source=place).median_gb_per_s == rate("local", gpu, times=2)
    for a, b in ((1, 2), (2, 1)):
        ends = {"source": f"gpu:{a}", "destination": f"gpu:{b}"}
        for method, way in METHODS.items():
            assert the("p2p_direct", method=method, **ends).median_gb_per_s == rate(way, a, b), way
        slower = min(("d2h", a), ("h2d", b), key=lambda path: box.rate(*path))  # type: ignore[arg-type]
        assert the("p2p_staged", **ends).median_gb_per_s == rate(*slower)  # type: ignore[arg-type]
        chase_us = box.routes["read", a, b].chase_ns / 1000
        assert the("latency", path="direct", **ends).median_us == pytest.approx(chase_us, rel=WITHIN)
    assert (found.failures, found.not_measured, found.complete) == ((), (), True)
    for sample in found.samples:
        assert {one.gpu for one in sample.conditions} == set(sample.gpus)
        assert all(one.pstate == "P0" and one.pcie_gen for one in sample.conditions)
        assert all(one.readings + one.readings_beside for one in sample.conditions)
