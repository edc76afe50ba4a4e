"""Network cards as values: a fault of one of them is found on it, and nothing on cards that are alike."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gputopo.findings import find_read
from gputopo.values.finding import Finding
from gputopo.values.machine import Driver, Host, Machine, NicPort
from tests.findings.network_cards import DOWN, alike, ethernet, machine, odd, port, rising


def found(one: Machine) -> list[Finding]:
    """Return the findings about network cards, in the order of the checks."""
    return [finding for finding in find_read(one) if finding.id.startswith("nic.")]


def brief(one: Machine) -> list[tuple[str, str, str, str]]:
    return [(f.id, f.severity, f.subject.text, f.says) for f in found(one)]


@pytest.mark.parametrize("count", [2, 8])
def test_cards_that_are_alike_and_up_have_no_findings(count: int) -> None:
    assert brief(machine(*alike(count), gpus=count)) == []


@pytest.mark.parametrize(
    ("facts", "id", "says"),
    [
        (DOWN, "nic.link_down", "mlx5_1: link down (Polling); up on 3 similar ports"),
        ({"rate_gbit_per_s": 100.0}, "nic.link_slow", "mlx5_1: 100 Gbit/s, 200 Gbit/s on 3 similar ports"),
        ({"mtu_bytes": 2044}, "nic.mtu_differs", "mlx5_1: MTU 2044 bytes, 4092 on 3 similar ports"),
        (
            {"errors": {"symbol_error": 65_535, "out_of_sequence": 3}},
            "nic.errors",
            "mlx5_1: symbol_error 65535, far more than on similar ports",
        ),
    ],
)
def test_the_odd_one_of_four_ports_is_named_and_no_other(facts: dict[str, Any], id: str, says: str) -> None:
    # A port without a link is near to its GPU no more.
    (one,) = (one for one in brief(odd(**facts)) if one[0] != "nic.gpu_far")
    assert one == (id, "warning", "nic:1", says)


def test_a_card_without_a_port_is_named_by_its_address() -> None:
    ports: list[NicPort | None] = [*alike()]
    ports[2] = None
    (one,) = (one for one in found(machine(*ports)) if one.id == "nic.link_down")
    assert (one.subject.text, one.severity) == ("nic:2", "warning")
    assert one.says.startswith("0000:02:00.0: no network interface (kernel driver none)")


def test_a_spare_ethernet_port_is_no_finding_unless_like_cards_are_in_use() -> None:
    down = {"operstate": "down", "carrier": False, "rate_gbit_per_s": None}
    assert brief(machine(ethernet(0, **down))) == []
    two_functions = machine(ethernet(0), ethernet(1, **down))
    same_card = tuple(replace(n, pci_address=f"0000:00:00.{n.index}") for n in two_functions.nics)
    nodes = tuple(replace(n, address=f"0000:00:00.{i}") for i, n in enumerate(two_functions.pci))
    assert brief(replace(two_functions, nics=same_card, pci=nodes)) == []
    (one,) = found(two_functions)
    assert (one.id, one.severity, one.subject.text) == ("nic.link_down", "info", "nic:1")


def test_two_rates_without_a_majority_are_no_accusation_and_two_mtus_name_both() -> None:
    two = machine(port(0), port(1, rate_gbit_per_s=100.0, mtu_bytes=2044), gpus=2)
    assert brief(two) == [
        ("nic.link_slow", "info", "nic:1", "mlx5_1: 100 Gbit/s, 200 Gbit/s on a similar port"),
        ("nic.mtu_differs", "warning", "nics:0-1", "MTU of similar ports: mlx5_0 4092, mlx5_1 2044 bytes"),
    ]


def test_one_lane_is_a_fault_without_peers_and_two_are_a_split_cable() -> None:
    narrow = machine(port(0, lanes=1, rate_gbit_per_s=50.0), gpus=1)
    assert brief(narrow) == [("nic.link_slow", "warning", "nic:0", "mlx5_0: 50 Gbit/s, on 1 lane")]
    assert brief(machine(port(0, lanes=2, rate_gbit_per_s=100.0), gpus=1)) == []


def test_ethernet_and_infiniband_ports_of_one_model_are_not_compared() -> None:
    mixed = machine(*alike(3), port(3, link_layer="Ethernet", rate_gbit_per_s=100.0, mtu_bytes=1500))
    assert brief(mixed) == []


def test_errors_that_all_ports_have_are_reported_as_information() -> None:
    several = machine(*alike(errors={"symbol_error": 12}))
    assert {(id, severity) for id, severity, _, _ in brief(several)} == {("nic.errors", "info")}
    assert brief(machine(*alike(errors={"symbol_error": 9, "out_of_sequence": 9_000}))) == []


def test_a_gpu_far_from_every_card_is_found_where_others_are_near() -> None:
    far = machine(*alike(2), gpus=3, near={2: 9})
    assert [(id, subject) for id, _, subject, _ in brief(far)] == [("nic.gpu_far", "gpu:2")]
    assert brief(machine(*alike(2), gpus=3, near={0: 9, 1: 9, 2: 9})) == []


@pytest.mark.parametrize(
    ("driver", "kernel", "is_found"),
    [
        ({"peer_memory_module": "none"}, "6.1.0-test", True),
        ({"peer_memory_module": "none", "open_kernel_module": True}, "6.1.0-test", False),
        ({"peer_memory_module": "none", "open_kernel_module": True}, "5.4.0", True),
        ({"peer_memory_module": "nv_peer_mem"}, "6.1.0", False),
    ],
)
def test_gpudirect_rdma_needs_a_module_or_dma_buf(
    driver: dict[str, Any], kernel: str, is_found: bool
) -> None:
    one = machine(*alike(), driver=Driver(status="ok", **driver), host=Host(kernel=kernel))
    assert [id for id, _, _, _ in brief(one)] == ["nic.gpudirect_off"] * is_found
    geforce = replace(one, gpus=tuple(replace(gpu, name="NVIDIA GeForce RTX 4090") for gpu in one.gpus))
    assert brief(geforce) == []


def test_counters_that_rose_are_found_on_their_port_and_those_that_fell_are_not() -> None:
    before = machine(*alike())
    link = odd(errors={"symbol_error": 7, "out_of_sequence": 2})
    (one,) = rising(link, before, 2.0)
    assert (one.severity, one.subject.text) == ("warning", "nic:1")
    assert one.says == "mlx5_1: rose in 2.0 min: symbol_error by 7, out_of_sequence by 2"
    (congested,) = rising(odd(errors={"symbol_error": 0, "out_of_sequence": 9}), before)
    assert congested.severity == "info"
    assert rising(before, link) == []
    assert rising(before, replace(before, nics=())) == []


facts = st.fixed_dictionaries(
    {},
    optional={
        "state": st.sampled_from([None, "ACTIVE", "DOWN", "INIT"]),
        "rate_gbit_per_s": st.sampled_from([None, 100.0, 200.0]),
        "lanes": st.sampled_from([None, 1, 4]),
        "mtu_bytes": st.sampled_from([None, 1500, 4092]),
        "link_layer": st.sampled_from([None, "Ethernet", "InfiniBand"]),
        "errors": st.none()
        | st.dictionaries(st.sampled_from(["symbol_error", "rx_errors"]), st.integers(0, 9_999)),
    },
)


@given(st.lists(facts, max_size=5), st.dictionaries(st.integers(0, 3), st.integers(0, 5)))
def test_any_cards_give_findings_of_declared_severities_about_cards_that_there_are(
    ports: list[dict[str, Any]], near: dict[int, int]
) -> None:
    one = machine(*(port(number, **known) for number, known in enumerate(ports)), near=near)
    for finding in found(one):
        assert set(finding.subject.nics) <= set(range(len(ports)))
        assert finding.says


@given(facts, st.integers(2, 6))
def test_ports_with_the_same_facts_never_accuse_one_another(known: dict[str, Any], count: int) -> None:
    same = machine(*(port(number, **known) for number in range(count)), gpus=count)
    by_id: dict[str, list[int]] = {}
    for finding in found(same):
        by_id.setdefault(finding.id, []).extend(finding.subject.nics)
    assert all(len(set(nics)) in (0, count) for nics in by_id.values())
