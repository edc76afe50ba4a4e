from typing import Any

import msgspec
import pytest

from gputopo.findings import find, machine_difference
from gputopo.values import schema
from gputopo.values.difference import Change, Difference
from gputopo.values.finding import Finding
from gputopo.values.machine import (
    ClockMhz,
    ClocksMhz,
    Driver,
    Ecc,
    Gpu,
    Hop,
    Host,
    Link,
    Machine,
    Nic,
    NvLink,
    Pcie,
    PciNode,
    PowerW,
    Throttle,
    UtilizationPercent,
)
from tests.findings import boxes
from tests.findings.faults import FAULTS


def gpu(index: int = 0, **facts: Any) -> Gpu:
    return Gpu(index=index, **{"pci_address": f"0000:0{index + 1}:00.0", "name": "card", **facts})


def machine(*gpus: Gpu, **facts: Any) -> Machine:
    return Machine(**{"source": "live", "gpus": gpus, "driver": Driver(status="ok"), **facts})


def said(old: Machine, new: Machine) -> list[str]:
    return [change.says for change in machine_difference(old, new).changes]


BUSY: dict[str, Any] = {
    "pstate": "P2",
    "throttle": Throttle(mask=0),
    "utilization_percent": UtilizationPercent(gpu=90),
}


@pytest.mark.parametrize(
    ("was", "now", "says"),
    [
        ({"power_w": PowerW(limit=180.0)}, {"power_w": PowerW(limit=151.0)}, "limit 180 W -> 151 W"),
        ({"pcie": Pcie(width_now=16)}, {"pcie": Pcie(width_now=8)}, "PCIe width now x16 -> x8"),
        (
            {"clocks_mhz": ClocksMhz(memory=ClockMhz(max=5005))},
            {"clocks_mhz": ClocksMhz(memory=ClockMhz(max=4004))},
            "memory clock max 5005 MHz -> 4004 MHz",
        ),
        ({"ecc": Ecc(corrected_volatile=3)}, {"ecc": Ecc(corrected_volatile=5)}, "3 -> 5 (+2)"),
        ({"pcie": Pcie(gen_now=3), **BUSY}, {"pcie": Pcie(gen_now=1), **BUSY}, "PCIe gen now 3 -> 1"),
        (
            {"nvlinks": (NvLink(link=2, active=True),)},
            {"nvlinks": (NvLink(link=2, active=False),)},
            "NVLink 2 active on -> off",
        ),
    ],
)  # fmt: skip
def test_a_fact_that_is_not_what_it_was_is_one_line(was: Any, now: Any, says: str) -> None:
    lines = said(machine(gpu(**was)), machine(gpu(**now)))
    assert len(lines) == 1
    assert lines[0].startswith("GPU 0: ")
    assert says in lines[0]


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ({"clocks_mhz": ClocksMhz(sm=ClockMhz(now=300))}, {"clocks_mhz": ClocksMhz(sm=ClockMhz(now=1900))}),
        ({"power_w": PowerW(draw=9.0)}, {"power_w": PowerW(draw=300.0)}),
        ({"utilization_percent": UtilizationPercent(gpu=0)}, BUSY),
        ({"throttle": Throttle(mask=1)}, {"throttle": Throttle(mask=4)}),
    ],
)  # fmt: skip
def test_a_passing_reading_is_no_change(was: Any, now: Any) -> None:
    assert said(machine(gpu(**was)), machine(gpu(**now))) == []


def test_the_generation_of_an_idle_link_is_no_change() -> None:
    idle = gpu(pcie=Pcie(gen_now=1), pstate="P8")
    assert said(machine(gpu(pcie=Pcie(gen_now=3), **BUSY)), machine(idle)) == []


def test_a_counter_that_began_anew_is_no_change() -> None:
    was, now = (gpu(ecc=Ecc(corrected_volatile=n), pcie=Pcie(replay_counter=n)) for n in (9, 0))
    assert said(machine(was), machine(now)) == []


def test_gpus_that_came_and_went_are_named() -> None:
    old = machine(gpu(0), gpu(1), gpu(2))
    new = machine(gpu(0), gpu(1, pci_address="0000:03:00.0"), gpu(2, pci_address="0000:09:00.0"))
    lines = said(old, new)
    assert "GPU 1 (card, 0000:02:00.0) is missing" in lines
    assert "GPU 2 (card, 0000:09:00.0) is only here" in lines
    assert "GPU 1 is GPU 2 there: the GPUs have different numbers" in lines
    assert len(lines) == 3


def test_another_card_in_the_same_slot_is_reported_without_its_uuid() -> None:
    found = machine_difference(machine(gpu(0, uuid="GPU-a")), machine(gpu(0, uuid="GPU-b")))
    assert [change.says for change in found.changes] == ["GPU 0 is another card"]
    assert b"GPU-a" not in schema.encode(found)


@pytest.mark.parametrize("lost", [True, False])
def test_a_gpu_that_got_lost_or_came_back_is_reported_once(lost: bool) -> None:
    whole = gpu(pcie=Pcie(gen_max=3), power_w=PowerW(limit=150.0))
    gone = Gpu(index=0, pci_address="0000:01:00.0", lost=True)
    lines = said(machine(whole if lost else gone), machine(gone if lost else whole))
    assert len(lines) == 1
    assert ("is lost:" if lost else "is lost there") in lines[0]


def test_links_are_compared_between_the_same_cards_whatever_their_numbers() -> None:
    old = machine(gpu(0, uuid="a"), gpu(1, uuid="b"), links=(Link(a=0, b=1, hop=Hop.PIX, p2p_read="OK"),))
    new = machine(
        gpu(0, uuid="b", pci_address="0000:02:00.0"),
        gpu(1, uuid="a", pci_address="0000:01:00.0"),
        links=(Link(a=0, b=1, hop=Hop.SYS, p2p_read="OK"),),
    )
    found = [change for change in machine_difference(old, new).changes if change.fact.startswith("links")]
    assert found == [
        Change(fact="links[0-1].hop", was="PIX", is_="SYS", says="GPUs 0 and 1: PCIe hop PIX -> SYS")
    ]


def test_a_capture_that_lists_no_gpus_does_not_make_them_new() -> None:
    assert said(Machine(source="lspci"), machine(gpu(0))) == []
    assert said(machine(driver=Driver(status="no_device")), machine(gpu(0))) == [
        "driver: status no_device -> ok",
        "GPU 0 (card, 0000:01:00.0) is only here",
    ]


def test_network_cards_the_host_and_bridges_are_compared_too() -> None:
    bridge = PciNode(address="0000:00:01.0", root="pci0000:00", kind="bridge", max_width=16, aer={"fatal": 0})
    old = machine(
        host=Host(kernel="6.1", acs="off"),
        nics=(Nic(index=0, name="mlx5_0"), Nic(index=1, name="a")),
        pci=(bridge,),
    )
    new = machine(
        host=Host(kernel="6.2", acs="off"),
        nics=(Nic(index=0, name="mlx5_0"),),
        pci=(msgspec.structs.replace(bridge, max_width=8, aer={"fatal": 1}),),
    )
    assert said(old, new) == [
        "host: kernel 6.1 -> 6.2",
        "network card a is missing",
        "PCI device 0000:00:01.0: max width x16 -> x8",
        "PCI device 0000:00:01.0: AER errors fatal 0 -> 1 (+1)",
    ]


def test_the_json_form_states_was_and_is() -> None:
    found = machine_difference(machine(gpu(numa_node=0)), machine(gpu(numa_node=1)))
    document = schema.to_builtins(found)
    assert document["schema"] == "gputopo.diff/1"
    assert list(document["changes"]) == [
        {"fact": "gpus[0].numa_node", "was": 0, "is": 1, "says": "GPU 0: NUMA node 0 -> 1"}
    ]
    assert schema.decode(schema.encode(found), Difference, origin="x") == found


HOT = boxes.gpu(1, throttle={"mask": 0x40, "reasons": ("hw_thermal_slowdown",)})
OFF = boxes.every_gpu(persistence_mode=False)


def in_short(findings: tuple[Finding, ...]) -> list[tuple[str, str]]:
    return [(one.id, one.subject.text) for one in findings]


def test_findings_come_go_and_stay() -> None:
    was, now = OFF(boxes.sound()), HOT(OFF(boxes.sound()))
    forth, back = machine_difference(was, now).findings, machine_difference(now, was).findings
    assert in_short(forth.came) == [("throttle.hw_thermal_slowdown", "gpu:1")]
    assert ("configuration.persistence_off", "gpus:0-3") in in_short(forth.stayed)
    assert forth.went == ()
    assert (back.came, back.went) == ((), forth.came)


def test_a_machine_has_the_same_findings_as_itself() -> None:
    for change, _ in [*FAULTS.values()][::9]:
        machine = change(boxes.sound())
        found = machine_difference(machine, machine).findings
        assert (found.came, found.went) == ((), ())
        assert found.stayed == find(machine)
