"""Fleets of simulated hosts: the odd ones are named with what is wrong, and no other."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gputopo.findings import inspect_fleet
from gputopo.values import schema
from gputopo.values.errors import InputError
from gputopo.values.finding import Fleet, HostFinding
from gputopo.values.machine import Machine
from tests.findings import boxes
from tests.invented_machines import machines
from tests.kit.faults import FAULTS, broken
from tests.kit.machines import machine_of, read

GPU = 2
ON_FOUR = ["ecc_uncorrected", "lost", "power_cap_low", "x1_riser"]


@cache
def with_fault(scenario: str, fault: str) -> Machine:
    at = f"{fault}@{GPU}" if FAULTS[fault].of_gpu else fault
    with TemporaryDirectory() as folder:
        return read(broken(scenario, at), Path(folder))


def fleet_of(machine: Machine, count: int, odd: dict[int, Machine]) -> Fleet:
    return inspect_fleet({f"n{number}": odd.get(number, machine) for number in range(count)})


def accused(found: Fleet) -> set[str]:
    return {host for finding in found.findings for host in finding.hosts}


def of(found: Fleet, id: str) -> list[HostFinding]:
    return [finding for finding in found.findings if finding.id == id]


def test_equal_hosts_are_one_kind_of_which_none_is_odd() -> None:
    found = fleet_of(machine_of("dgx1"), 3, {})
    assert (found.findings, found.outliers, found.unread) == ((), (), ())
    assert [len(kind.hosts) for kind in found.kinds] == [3]


def test_idle_links_make_no_host_differ() -> None:
    found = fleet_of(machine_of("four"), 4, {1: with_fault("four", "idle_link")})
    assert of(found, "fleet.differs") == of(found, "fleet.split") == []


@settings(max_examples=4)
@given(
    st.integers(2, 9),
    st.lists(st.sampled_from(ON_FOUR), max_size=2, unique=True),
    st.randoms(use_true_random=False),
)
def test_hosts_with_faults_of_their_own_are_named_in_any_fleet(
    count: int, faults: list[str], random: Any
) -> None:
    odd = dict(zip(random.sample(range(count), min(count, len(faults))), faults, strict=False))
    found = fleet_of(machine_of("four"), count, {n: with_fault("four", fault) for n, fault in odd.items()})
    names = {f"n{number}" for number in odd}
    assert accused(found) >= names
    if count > 2 * len(odd):
        assert accused(found) == names
    if count > 4:
        assert set(found.outliers) == names


def without_gpu(machine: Machine, index: int) -> Machine:
    """The machine as its driver numbers the GPUs when one is not on the bus."""
    address = machine.gpus[index].pci_address
    number = {gpu.index: gpu.index - (gpu.index > index) for gpu in machine.gpus if gpu.index != index}
    return replace(
        machine,
        gpus=tuple(replace(gpu, index=number[gpu.index]) for gpu in machine.gpus if gpu.index != index),
        links=tuple(
            replace(link, a=number[link.a], b=number[link.b])
            for link in machine.links
            if index not in (link.a, link.b)
        ),
        pci=tuple(node for node in machine.pci if node.address != address),
    )


def test_a_missing_gpu_is_named_by_its_place() -> None:
    machine = machine_of("four")
    found = fleet_of(machine, 6, {3: without_gpu(machine, 2)})
    (one,) = of(found, "fleet.gpu_count")
    assert one.says == "host n3: GPU at 0000:46:00.0: missing (there on its 5 peers)"
    assert (one.severity, one.hosts, accused(found)) == ("error", ("n3",), {"n3"})
    assert of(found, "fleet.differs") == []
    assert [kind.name for kind in found.kinds] == ["4 x Test-100"]


def test_what_was_not_read_is_named_once() -> None:
    found = fleet_of(machine_of("four"), 4, {3: with_fault("four", "no_privileges")})
    (one,) = of(found, "fleet.not_read")
    assert one.says == "host n3: 7 facts not read that similar hosts have (host ACS, pci ACS)"


def shifted(machine: Machine, by: int = 0x10) -> Machine:
    """The machine with other bus numbers everywhere, as where one more device is found before."""

    def moved(address: str) -> str:
        domain, bus, rest = address.split(":")
        return f"{domain}:{int(bus, 16) + by:02x}:{rest}"

    text = schema.encode(machine).decode()
    addresses = {one for node in machine.pci for one in (node.address, node.parent) if one is not None}
    for number, address in enumerate(sorted(addresses)):
        text = text.replace(address, f"<{number}>")
    for number, address in enumerate(sorted(addresses)):
        text = text.replace(f"<{number}>", moved(address))
    return schema.decode(text, Machine, origin="a test")


def test_other_bus_numbers_accuse_nobody_and_hide_no_fault() -> None:
    machine = machine_of("four")
    found = fleet_of(machine, 3, {1: shifted(machine), 2: shifted(with_fault("four", "x1_riser"))})
    assert set(found.outliers) == {"n2"}
    gpus = {gpu for one in of(found, "fleet.differs") for gpu in one.subject.gpus}
    assert gpus == {GPU}


def test_two_hosts_that_differ_are_both_named_and_none_is_odd() -> None:
    machine = machine_of("four")
    other = boxes.driver(version="535.1", kernel_module_version="535.1")(machine)
    found = inspect_fleet({"a": machine, "b": other})
    (one,) = found.findings
    assert (one.id, one.hosts, found.outliers) == ("fleet.split", ("a", "b"), ())
    assert one.says == "hosts differ: driver: version 550.163.01 on a; 535.1 on b"


def test_half_of_four_hosts_are_no_majority() -> None:
    machine = machine_of("four")
    poorer = with_fault("four", "no_privileges")
    assert fleet_of(machine, 4, {2: poorer, 3: poorer}).findings == ()
    other = replace(machine, host=replace(machine.host, kernel="6.8.0"))
    found = fleet_of(machine, 4, {0: other, 1: other})
    assert [(one.id, one.hosts) for one in found.findings] == [("fleet.split", ("n0", "n1", "n2", "n3"))]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (boxes.host(kernel="6.8.0"), "host: kernel 6.8.0"),
        (boxes.driver(version="535.1"), "driver: version 535.1 (550.163.01 on its 2 peers)"),
        (boxes.gpu(1, numa_node=1), "GPU 1: NUMA node 1 (0 on its 2 peers)"),
        (
            boxes.pair(0, 1, p2p_read="CHIPSET_NOT_SUPPORTED"),
            "GPUs 0 and 1: peer read CHIPSET_NOT_SUPPORTED (OK on its 2 peers)",
        ),
    ],
)
def test_a_fact_of_one_host_is_said_beside_that_of_its_peers(change: boxes.Change, words: str) -> None:
    machine = machine_of("four")
    found = fleet_of(machine, 3, {2: change(machine)})
    assert any(one.says.startswith(f"host n2: {words}") for one in of(found, "fleet.differs"))
    assert accused(found) == {"n2"}


def test_what_differs_by_nature_accuses_nobody() -> None:
    machine = machine_of("four")
    change = boxes.all_of(
        boxes.every_gpu(temperature_c={"gpu": 55}, power_w={"draw": 80.0}, uuid="GPU-x"),
        boxes.every_gpu(clocks_mhz={"sm": {"now": 210}}, memory_mib={"used": 300, "free": 40_000}),
        boxes.host(memory_mib=63_900, name="n2.cluster"),
    )
    assert accused(fleet_of(machine, 3, {2: change(machine)})) == set()


def test_kinds_of_hosts_are_apart_and_named() -> None:
    names = ["dgx1", "four", "dgx1", "dual_socket_4_4", "four", "dgx1"]
    found = inspect_fleet({f"n{n}": machine_of(name) for n, name in enumerate(names)})
    assert {kind.name: kind.hosts for kind in found.kinds} == {
        "8 x Tesla P100-SXM2-16GB": ("n0", "n2", "n5"),
        "4 x Test-100": ("n1", "n4"),
        "8 x GeForce RTX 2080 Ti": ("n3",),
    }
    assert found.outliers == ()


def test_half_as_many_gpus_on_several_hosts_are_a_kind_and_not_missing() -> None:
    machine = machine_of("four")
    half = without_gpu(without_gpu(machine, 3), 2)
    found = fleet_of(machine, 6, {0: half, 1: half})
    assert [len(kind.hosts) for kind in found.kinds] == [4, 2]
    assert of(found, "fleet.gpu_count") == []


def test_half_of_the_gpus_are_missing_on_a_host_that_is_alone_with_that() -> None:
    machine = machine_of("four")
    half = without_gpu(without_gpu(machine, 3), 2)
    (one,) = of(fleet_of(machine, 3, {1: half}), "fleet.gpu_count")
    assert one.says == "host n1: GPU at 0000:46:00.0 and 1 more: missing (there on its 2 peers)"
    assert len(inspect_fleet({"a": machine, "b": half}).kinds) == 2


def test_a_host_that_cannot_be_read_is_a_finding_about_it() -> None:
    machine = machine_of("four")
    readings: dict[str, Any] = {"a": machine, "b": InputError("b.json: no such file", "look"), "c": machine}
    found = inspect_fleet(readings)
    (one,) = found.findings
    assert (one.id, one.severity, one.hosts, found.unread) == ("fleet.no_answer", "error", ("b",), ("b",))
    assert "b.json: no such file" in one.says


def test_findings_of_all_hosts_are_reported_once() -> None:
    found = fleet_of(boxes.every_gpu(persistence_mode=False)(machine_of("four")), 5, {})
    assert found.findings == ()
    (one,) = (one for one in found.shared if one.id == "configuration.persistence_off")
    assert one.says.startswith("5 of 5 hosts: GPUs 0-3: ")
    assert len(one.hosts) == 5


def test_a_finding_that_is_not_seen_on_hosts_that_do_not_answer_makes_none_of_the_others_odd() -> None:
    found = fleet_of(machine_of("four"), 4, dict.fromkeys((2, 3), with_fault("four", "driver_not_loaded")))
    assert of(found, "card.no_expectation") == []
    assert set(found.outliers) == {"n2", "n3"}


@settings(max_examples=3)
@given(st.lists(machines(), min_size=1, max_size=3))
def test_any_machines_are_compared(answers: list[Machine]) -> None:
    found = inspect_fleet({f"n{number}": machine for number, machine in enumerate(answers)})
    assert sorted(host for kind in found.kinds for host in kind.hosts) == sorted(found.exit_codes)
    assert schema.encode(found)


def test_every_rule_of_a_fleet_is_reported_in_words() -> None:
    machine = machine_of("dgx1")
    odd: dict[str, Machine] = {
        "nic": with_fault("dgx1", "nic_missing"),
        "container": with_fault("dgx1", "container_hidden"),
    }
    kernels = {f"k{n}": boxes.host(kernel=f"6.{n % 2}.0")(machine) for n in range(4)}
    readings: dict[str, Any] = {**odd, **kernels, "off": InputError("off.json: no such file", "look")}
    several = inspect_fleet(readings)
    two = inspect_fleet({"a": machine, "b": boxes.host(kernel="6.9.0")(machine)}, {"b": machine})
    four = machine_of("four")
    fewer = fleet_of(four, 3, {1: without_gpu(four, 2)})
    found = [*several.findings, *two.findings, *fewer.findings]
    assert {one.id for one in found} >= {id for id in boxes.IDS if id.startswith("fleet.")}
    assert all(one.says.startswith("host") and "\n" not in one.says and one.remedy for one in found)


def test_the_document_is_read_as_it_was_written() -> None:
    found = fleet_of(machine_of("four"), 3, {1: with_fault("four", "x1_riser")})
    assert schema.to_builtins(found)["schema"] == "gputopo.fleet/1"
    assert schema.decode(schema.encode(found), Fleet, origin="a test") == found


def test_load_is_one_line_with_the_hosts_that_have_it_and_no_outlier() -> None:
    busy = with_fault("four", "busy")
    found = fleet_of(machine_of("four"), 8, dict.fromkeys((1, 2, 3, 7), busy))
    assert (found.outliers, of(found, "gpu.busy")) == ((), [])
    (shared,) = [one for one in found.shared if one.id == "gpu.busy"]
    assert shared.says == "other programs run on GPUs of 4 of 8 hosts: n[1-3,7]"
    assert shared.hosts == ("n1", "n2", "n3", "n7")
