from itertools import combinations

import pytest
from msgspec.structs import replace

from gputopo.values.finding import Finding
from gputopo.values.machine import Gpu, Hop, Link, Machine, NvLink
from tests.findings.boxes import all_of, every_gpu, find, gpu, host, sound


def ports(up: int, down: int = 0) -> tuple[NvLink, ...]:
    return tuple(NvLink(link=number, active=number < up) for number in range(up + down))


BRIDGED = every_gpu(
    name="NVIDIA A40",
    clocks_mhz={
        "sm": {"now": 1740, "max": 1740, "application": 1740},
        "memory": {"now": 7251, "max": 7251, "application": None},
    },
    pcie={"gen_max_device": 3},
)


def test_fewer_links_than_the_peers_have_are_an_error_on_that_card() -> None:
    (found,) = find(gpu(2, nvlinks=ports(4, 2))(sound()))
    assert (found.id, found.subject.text, found.severity) == ("nvlink.down", "gpu:2", "error")
    assert found.evidence["down"] == [4, 5]
    assert (found.evidence["up"], found.evidence["due"]) == (4, 6)


def test_as_many_links_up_on_every_card_may_be_the_board_and_is_a_warning() -> None:
    (found,) = find(every_gpu(nvlinks=ports(3, 3))(sound()))
    assert (found.id, found.subject.text, found.severity) == ("nvlink.down", "gpus:0-3", "warning")
    assert "3 of 6 NVLinks up" in found.says
    (dark,) = find(every_gpu(nvlinks=ports(0, 6))(sound()))
    assert dark.severity == "error"


@pytest.mark.parametrize("count", [1, 4])
def test_the_part_of_a_server_that_a_virtual_machine_has_may_lack_links(count: int) -> None:
    machine = all_of(host(virtual_machine="kvm"), every_gpu(nvlinks=ports(2, 4)))(sound(count))
    assert find(machine) == ()


def test_cards_without_a_bridge_are_fine_beside_cards_with_one() -> None:
    lit = (gpu(index, nvlinks=ports(4)) for index in (0, 1))
    dark = (gpu(index, nvlinks=ports(0, 4)) for index in (2, 3))
    machine = all_of(BRIDGED, *lit, *dark)
    assert find(machine(sound())) == ()
    none = all_of(BRIDGED, every_gpu(nvlinks=ports(0, 4)))
    assert find(none(sound())) == ()


@pytest.mark.parametrize(
    ("errors", "bad"),
    [
        ({"replay": 100}, False),
        ({"replay": 101}, True),
        ({"crc_flit": 101}, True),
        ({"recovery": 1}, True),
    ],
)
def test_error_counts_matter_from_a_limit_on(errors: dict[str, int], bad: bool) -> None:
    links = tuple(replace(link, errors=errors if link.link == 3 else {}) for link in ports(6))
    found = find(gpu(1, nvlinks=links)(sound()))
    assert [finding.id for finding in found] == (["nvlink.errors"] if bad else [])
    if bad:
        assert found[0].evidence["errors"] == {"3": errors}


def matrix(**nvlinks: int) -> Machine:
    """A machine of which only the counts between cards are known: matrix(p01=12, p23=10)."""
    links = tuple(
        Link(a=a, b=b, hop=None if count else Hop.NODE, nvlinks=count)
        for a in range(4)
        for b in range(a + 1, 4)
        for count in (nvlinks.get(f"p{a}{b}", 0),)
    )
    return Machine(source="a test", gpus=tuple(Gpu(index=index) for index in range(4)), links=links)


def test_a_bridge_with_fewer_links_than_the_other_is_reported_of_its_pair() -> None:
    (found,) = [finding for finding in find(matrix(p01=12, p23=10)) if finding.severity != "info"]
    assert (found.id, found.subject.text) == ("nvlink.thin_bridge", "link:2-3")
    assert found.evidence == {"nvlinks": 10, "widest": 12}


def test_equal_bridges_and_meshes_of_uneven_pairs_are_sound() -> None:
    for machine in (matrix(p01=12, p23=12), matrix(p01=2, p02=1, p13=1, p23=2), matrix(p01=4)):
        assert not [finding for finding in find(machine) if finding.id.startswith("nvlink")]


def switched(*apart: int, count: int = 5, **card: object) -> Machine:
    """Cards that are all joined by 18 NVLinks, but for some; `card`: what is reported of each."""
    links = tuple(
        Link(a=a, b=b, hop=Hop.NODE if alone else None, nvlinks=0 if alone else 18)
        for a, b in combinations(range(count), 2)
        for alone in (a in apart or b in apart,)
    )
    cards = tuple(replace(Gpu(index=index), **card) for index in range(count))
    return Machine(source="a test", gpus=cards, links=links)


def test_a_card_that_is_attached_to_none_of_the_switches_is_reported() -> None:
    for name, severity in ((None, "warning"), ("NVIDIA B200", "error")):
        (found,) = [one for one in find(switched(2, name=name)) if one.id.startswith("nvlink")]
        assert (found.id, found.subject.text, found.severity) == ("nvlink.down", "gpu:2", severity)
        assert "no NVLinks; GPUs 0-1,3-4 are all connected by 18" in found.says


def fabric(state: str, status: str | None = None, **health: str) -> dict[str, object]:
    return {"state": state, "status": status, "health": health or None}


def only(machine: Machine) -> Finding:
    (found,) = find(machine)
    return found


@pytest.mark.parametrize(
    ("name", "word", "severity"),
    [
        ("summary", "limited capacity", "warning"),
        ("summary", "unhealthy", "error"),
        ("route_unhealthy", "true", "error"),
    ],
)
def test_trouble_since_then_is_reported_in_the_drivers_words(name: str, word: str, severity: str) -> None:
    found = only(gpu(1, fabric=fabric("completed", "success", **{name: word}))(sound()))
    assert (found.id, found.subject.text, found.severity) == ("nvlink.fabric_unhealthy", "gpu:1", severity)
    assert f"{name.replace('_', ' ')} {word}" in found.says
