"""The verdict on what people published of their boxes (../shared/captures/bandwidth)."""

from itertools import combinations
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputopo.captures import reading
from gputopo.copies.expected import with_expectations
from gputopo.findings import Finding, find_bandwidth
from gputopo.values.machine import Hop, Link, Machine

FOLDER = Path(__file__).parents[4] / "shared" / "captures" / "bandwidth"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"{FOLDER} is not there")


def published(name: str) -> Machine:
    return reading.load([str(path) for path in sorted(FOLDER.glob(name))])


def by_id(machine: Machine) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for finding in find_bandwidth(machine):
        found.setdefault(finding.id, []).append(finding)
    return found


def seven(box: str = "7gforce") -> Machine:
    """The matrices, with the hops of its published topology: 0-2 and 3-6 each behind one switch."""
    machine = published(f"{box}-p2pBandwidthLatencyTest_keras-multi-gpu.txt")
    links = tuple(
        Link(a=a, b=b, hop=Hop.PIX if (a < 3) == (b < 3) else Hop.PHB) for a, b in combinations(range(7), 2)
    )
    return replace(machine, links=links)


@pytest.mark.parametrize("gpu", [0, 5])
def test_the_x1_links_of_7gforce_are_recognised_by_their_copies(gpu: int) -> None:
    found = by_id(published(f"7gforce-bandwidthTest_gpu_{gpu}_keras-multi-gpu.txt"))
    (narrow,) = found["pcie.slot_narrow"]
    assert narrow.evidence["fits"][0] == "Gen3 x1"
    assert "bandwidth.below_expected" not in found


def test_its_card_with_eight_lanes_is_not_called_narrow() -> None:
    found = by_id(published("7gforce-bandwidthTest_gpu_6_keras-multi-gpu.txt"))
    assert found.keys() == {"bandwidth.below_expected"}
    assert "as fast as Gen3 x8 (or Gen2 x16)" in found["bandwidth.below_expected"][0].says


def test_direct_is_slower_than_staged_for_its_pairs_across_the_host_bridge_and_no_others() -> None:
    (found,) = by_id(seven())["p2p.direct_slower_than_staged"]
    pairs = {tuple(sorted(map(int, pair.split(">")))) for pair in found.evidence["pairs"]}
    assert found.evidence["class"] == "PHB"
    assert pairs == {(a, b) for a in range(3) for b in range(3, 7)}


def test_its_local_copies_at_85_were_of_cards_in_ramp_up_and_no_slow_ones() -> None:
    found = by_id(seven())
    (woke,) = found["bandwidth.woke_up"]
    assert (woke.severity, woke.subject.text) == ("info", "gpus:0,2-3,5")
    assert "bandwidth.below_expected" not in found


def test_the_direct_pairs_of_the_second_box_that_lose_are_named() -> None:
    found = by_id(published("7gforce-v2-p2pBandwidthLatencyTest_keras-multi-gpu.txt"))
    (slower,) = found["p2p.direct_slower_than_staged"]
    assert set(slower.evidence["pairs"]) == {"3>4", "4>3", "5>6", "6>5"}
    numbers = slower.evidence["pairs"]["6>5"]
    assert (numbers["direct_gb_per_s"], numbers["staged_gb_per_s"]) == (8.96, 11.55)
    assert slower.severity == "info"  # neither in both directions at once nor in latency
    narrow = {one.subject.text: one.evidence for one in found["pcie.slot_narrow"]}
    assert narrow.keys() == {"gpus:0,4", "gpu:3"}
    assert narrow["gpu:3"]["fits"][0] == "Gen2 x1"


def test_the_halves_of_one_board_are_found_in_an_azure_machine() -> None:
    (found,) = by_id(published("az-4x-m60-p2pBandwidthLatencyTest_keras-multi-gpu.txt"))["pcie.shared_uplink"]
    assert [group["gpus"] for group in found.evidence["groups"]] == [[0, 2], [1, 3]]
    assert "GPUs of different uplinks" in (found.remedy or "")


def test_where_all_gpus_share_one_uplink_no_one_is_sent_to_other_gpus() -> None:
    (found,) = by_id(published("nvbandwidth-json-rtx5090_nvbandwidth_5090.json"))["pcie.shared_uplink"]
    assert [group["gpus"] for group in found.evidence["groups"]] == [[0, 1, 2, 3]]
    assert (found.remedy or "").startswith("Use fewer GPUs")


def test_all_its_files_together_give_the_same_verdict() -> None:
    machine = published("7gforce-[bfp]*")
    assert len(machine.gpus) == 7
    found = by_id(machine)
    subjects = {one.subject.text: one for one in found["pcie.slot_narrow"]}
    assert subjects.keys() == {"gpus:0-5"}
    assert "Gen3 x1" in subjects["gpus:0-5"].says
    assert {one.subject.text for one in found["bandwidth.woke_up"]} == {"gpus:0,2-3,5"}
    assert len(found["p2p.direct_slower_than_staged"]) == 1
    assert "bandwidth.pair_slower" not in found


def captures() -> list[str]:
    return sorted(path.name for path in FOLDER.glob("*") if path.suffix != ".csv") if FOLDER.is_dir() else []


@pytest.mark.parametrize("name", captures())
def test_every_published_output_gets_a_verdict_of_few_findings(name: str) -> None:
    machine = published(name)
    assert machine.bandwidth is not None
    found = find_bandwidth(machine)
    assert len(found) <= 5
    assert not any(finding.severity == "error" for finding in found)
    judged = with_expectations(machine.bandwidth, machine)
    for sample in judged.samples:
        if sample.expected_gb_per_s is not None:
            assert sample.expected_source
            assert sample.expected_gb_per_s > 0
    assert with_expectations(judged, machine) == judged
