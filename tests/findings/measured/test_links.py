"""One card of several equal ones that copies far slower with the host than the others do."""

from itertools import permutations

from msgspec.structs import replace

from gputopo.findings import Finding, find_bandwidth
from gputopo.values.bandwidth import Bandwidth, Kind
from gputopo.values.machine import Gpu, Machine
from tests.findings.measured.machines import sample


def box(*rates: tuple[float, float], names: tuple[str, ...] = (), lanes: int | None = None) -> Machine:
    """GPUs of which only what they copy from and to the host is known."""
    gpus = [Gpu(index=index, name="NVIDIA H100 80GB HBM3") for index, _ in enumerate(rates)]
    gpus = [replace(gpu, name=name) for gpu, name in zip(gpus, names, strict=True)] if names else gpus
    gpus[0] = replace(gpus[0], pcie=replace(gpus[0].pcie, width_now=lanes, width_max=lanes))
    samples = []
    for index, (to_gpu, from_gpu) in enumerate(rates):
        samples.append(sample("h2d", "host", f"gpu:{index}", to_gpu, pinned=True))
        samples.append(sample("d2h", f"gpu:{index}", "host", from_gpu, pinned=True))
    return Machine(source="a test", gpus=tuple(gpus), bandwidth=Bandwidth(source="t", samples=tuple(samples)))


def below(machine: Machine) -> list[Finding]:
    return [one for one in find_bandwidth(machine) if one.id == "bandwidth.below_expected"]


def test_a_card_far_below_its_peers_in_both_directions_is_reported_with_their_rates() -> None:
    (found,) = below(box((14.0, 13.0), (57.0, 55.0), (56.0, 55.0)))
    assert (found.subject.text, found.severity) == ("gpu:0", "warning")
    assert "20%" in found.says
    assert found.evidence == {"gb_per_s": 14.0, "peers_gb_per_s": {"1": 57.0, "2": 56.0}}


def test_half_of_the_lanes_is_how_boards_are_wired() -> None:
    sound = 50.0
    assert below(box((22.6,) * 2, (sound, sound))) == []
    assert len(below(box((22.4,) * 2, (sound, sound)))) == 1


def test_one_slow_direction_is_another_fault() -> None:
    machine = box((14.0, 55.0), (57.0, 55.0), (57.0, 55.0))
    assert [one.id for one in find_bandwidth(machine)] == ["bandwidth.direction_differs"]


def test_cards_of_other_models_are_no_control() -> None:
    assert below(box((12.0, 12.5), (50.0, 52.0), names=("Tesla T4", "NVIDIA H100 PCIe"))) == []


def test_where_the_link_is_reported_the_rules_over_links_judge() -> None:
    machine = box((12.3, 12.8), (50.0, 52.0), (50.0, 52.0), lanes=8)
    assert below(machine) == []


def test_a_card_as_slow_as_few_lanes_is_reported_once() -> None:
    found = find_bandwidth(box((0.8, 0.8), (50.0, 52.0), (50.0, 52.0)))
    assert [one.id for one in found] == ["pcie.slot_narrow"]


def between(kind: Kind, *best: float) -> Machine:
    """GPUs of which only copies between them are known: each as fast as the slower of its ends."""
    pairs = permutations(range(len(best)), 2)
    samples = tuple(sample(kind, f"gpu:{a}", f"gpu:{b}", min(best[a], best[b])) for a, b in pairs)
    gpus = tuple(Gpu(index=index, name="NVIDIA GeForce RTX 3090") for index, _ in enumerate(best))
    return Machine(source="a test", gpus=gpus, bandwidth=Bandwidth(source="t", samples=samples))


def test_copies_between_gpus_through_the_host_show_it_too() -> None:
    (found,) = below(between("p2p_staged", 11.2, 11.1, 11.3, 2.1))
    assert found.subject.text == "gpu:3"
    assert "through the host reach about 20%" in found.says


def test_direct_copies_do_not_for_some_cards_may_have_a_bridge() -> None:
    assert below(between("p2p_direct", 50.0, 50.0, 11.0)) == []


def test_two_cards_have_one_path_between_them_and_no_slower_end() -> None:
    assert below(between("p2p_staged", 11.0, 2.1)) == []
