"""The verdict on the copies of bundled machines, as people published them."""

import pytest

from gputopo.captures import load
from gputopo.copies import with_expectations
from gputopo.findings import find_bandwidth
from gputopo.values.finding import Finding
from tests import there


def by_id(name: str) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for finding in find_bandwidth(load([name])):
        found.setdefault(finding.id, []).append(finding)
    return found


def test_direct_is_slower_than_staged_for_the_pairs_across_the_host_bridge_and_no_others() -> None:
    found = by_id("7gforce")
    (slower,) = found["p2p.direct_slower_than_staged"]
    pairs = {tuple(sorted(map(int, pair.split(">")))) for pair in slower.evidence["pairs"]}
    assert (slower.evidence["class"], pairs) == ("PHB", {(a, b) for a in range(3) for b in range(3, 7)})
    (woke,) = found["bandwidth.woke_up"]  # local copies at 85 GB/s
    assert (woke.severity, woke.subject.text) == ("info", "gpus:0,2-3,5")


def test_the_direct_pairs_of_the_second_box_that_lose_are_named() -> None:
    slower = by_id("7gforce-v2")["p2p.direct_slower_than_staged"]
    pairs = {pair: numbers for one in slower for pair, numbers in one.evidence["pairs"].items()}
    assert pairs.keys() == {"3>4", "4>3", "5>6", "6>5"}
    assert (pairs["6>5"]["direct_gb_per_s"], pairs["6>5"]["staged_gb_per_s"]) == (8.96, 11.55)
    assert {one.severity for one in slower} == {"info"}  # neither in both directions at once nor in latency


def test_the_halves_of_one_board_are_found_in_an_azure_machine() -> None:
    (found,) = by_id("az-4x-m60")["pcie.shared_uplink"]
    assert [group["gpus"] for group in found.evidence["groups"]] == [[0, 2], [1, 3]]
    assert "GPUs of different uplinks" in (found.remedy or "")


@pytest.mark.parametrize("name", ["7gforce-v2", "az-4x-m60"])
def test_every_machine_gets_a_verdict_of_few_findings(name: str) -> None:
    machine = load([name])
    found = [finding.severity for finding in find_bandwidth(machine)]
    assert (len(found) <= 5, "error" in found) == (True, False)
    judged = with_expectations(there(machine.bandwidth), machine)
    expected = [one.expectation for one in judged.copies if one.expectation.gb_per_s is not None]
    assert all(one.source and (one.gb_per_s or 0) > 0 for one in expected)
    assert with_expectations(judged, machine) == judged
