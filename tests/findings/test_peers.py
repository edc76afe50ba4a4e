"""Facts that last: one finding for each cause, against the minority or against nobody."""

import pytest

from gputopo.findings import peers
from gputopo.values.fields import fields_of
from gputopo.values.machine import Gpu
from tests.findings.boxes import Change, all_of, every_gpu, find, gpu, sound

OTHER_BUILD = gpu(
    1,
    vbios_version="88.00.13.00.01",
    clocks_mhz={"sm": {"max": 1380}, "graphics": {"max": 1380}, "memory": {"max": 810, "application": None}},
    power_w={"default_limit": 250.0, "limit": 250.0, "enforced_limit": 250.0, "max": 250.0},
)


def found(change: Change, count: int = 4) -> list[tuple[str, str]]:
    return [(one.id, one.subject.text) for one in peers.facts(change(sound(count)))]


def test_each_fact_with_a_rule_is_declared_to_be_the_same_on_peers() -> None:
    declared = {path for path, field in fields_of(Gpu).items() if field.fact.peers}
    assert {path for path in peers._FACTS if path not in declared} == set()


def test_a_card_of_another_build_is_reported_once() -> None:
    assert found(OTHER_BUILD) == [("clocks.memory_differs", "gpu:1")]
    (one,) = peers.facts(OTHER_BUILD(sound()))
    assert one.evidence["vbios_version"] == "88.00.13.00.01"
    assert one.evidence["peers"]["power_w.default_limit"] == 300.0
    assert "graphics" not in one.says  # set with the clock of the SMs


def test_of_two_cards_of_different_builds_neither_is_at_fault() -> None:
    assert found(OTHER_BUILD, 2) == [("clocks.memory_differs", "gpus:0-1")]


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (gpu(1, persistence_mode=False), "configuration.persistence_off"),
        (gpu(1, compute_mode="prohibited"), "configuration.compute_prohibited"),
        (
            gpu(1, power_w={"limit": 200.0, "enforced_limit": 200.0, "draw": 199.0}),
            "power.limit_below_default",
        ),
        (gpu(1, pcie={"width_now": 4, "width_max": 4}), "pcie.slot_narrow"),
        (all_of(*(gpu(n, persistence_mode=False) for n in (0, 1, 2))), "configuration.persistence_off"),
    ],
)
def test_a_cause_with_a_finding_of_its_own_is_no_second_one(change: Change, cause: str) -> None:
    assert found(change) == []
    assert [one.id for one in find(change(sound()))] == [cause]


def test_settings_are_findings_of_their_own() -> None:
    change = all_of(gpu(1, ecc={"mode": False, "mode_pending": False}), gpu(1, vbios_version="88"))
    assert sorted(found(change)) == [("card.differs", "gpu:1"), ("configuration.differs", "gpu:1")]


def test_a_power_limit_above_that_of_the_others_is_a_setting() -> None:
    change = all_of(
        every_gpu(power_w={"max": 350.0}), gpu(1, power_w={"limit": 350.0, "enforced_limit": 350.0})
    )
    assert found(change) == [("configuration.differs", "gpu:1")]


def test_cards_of_several_builds_are_listed() -> None:
    change = all_of(*(gpu(n, vbios_version=f"88.00.1{n // 2}") for n in range(4)))
    assert found(change) == [("card.differs", "gpus:0-3")]
