"""Ports of cards that the PCI tree does not show have a table of their own."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.report import difference_document, document_markdown, document_text, inspection_document
from gputopo.values.difference import Change, Difference, FindingChanges
from gputopo.values.finding import Finding, Inspection
from gputopo.values.machine import (
    ClockMhz,
    ClocksMhz,
    Driver,
    Gpu,
    Host,
    Machine,
    MemoryMib,
    Nic,
    NicPort,
    NumaNode,
    Pcie,
    PciNode,
    PowerW,
)
from gputopo.values.subject import Subject
from tests.report.shown import rows_of


def shown(machine: Machine, width: int = 80) -> str:
    return document_text(inspection_document(Inspection(machine=machine), "all"), width)


def row(machine: Machine, gpu: int, width: int = 200) -> list[str]:
    """Return the cells of a GPU's row in the one table of a wide screen."""
    lines = shown(machine, width).partition("\nGPUs\n")[2].splitlines()
    return next(line.split() for line in lines if line.split()[:1] == [str(gpu)])


def test_the_host_is_reported_in_a_few_lines() -> None:
    host = Host(
        cpu_model="Intel Xeon",
        sockets=2,
        physical_cores=1,
        logical_cpus=40,
        memory_mib=64_307,
        numa_nodes=(NumaNode(index=0, cpus="0-9", memory_mib=1024), NumaNode(index=8, cpus="")),
        kernel="6.1.0",
        iommu="translated",
        acs="on",
        container="docker",
        virtual_machine="kvm",
    )
    text = " ".join(shown(Machine(source="live", host=host)).split())
    assert "Host CPU model Intel Xeon, sockets 2, physical cores 1, logical CPUs 40, memory 64307 MiB" in text
    assert "NUMA 0 CPUs 0-9, memory 1024 MiB" in text
    assert "IOMMU translated, ACS on, container docker, virtual machine kvm" in text


def test_a_driver_is_reported_with_its_state_and_versions() -> None:
    driver = Driver(status="version_mismatch", version="560.2", kernel_module_version="550.1")
    text = shown(Machine(source="live", driver=driver), 120)
    assert "Driver  status version_mismatch, version 560.2, kernel module version 550.1" in text


def test_an_unknown_fact_is_a_question_mark_and_zero_is_a_zero() -> None:
    gpu = Gpu(
        index=0,
        name="card",
        clocks_mhz=ClocksMhz(graphics=ClockMhz(now=0, max=1911)),
        memory_mib=MemoryMib(used=0, total=8114),
        power_w=PowerW(limit=250.0),
    )
    missing = {"gpus[0].clocks_mhz.memory.now": "NOT_SUPPORTED", "gpus[0].power_w.draw": "NOT_SUPPORTED"}
    assert row(Machine(source="live", gpus=(gpu,), missing=missing), 0) == [
        "0", "card", "0/1911", "?", "?/250", "0.0/7.9"
    ]  # fmt: skip


def test_a_fact_that_a_source_does_not_report_is_a_dash() -> None:
    gpus = (Gpu(index=0, name="card", pstate="P0"), Gpu(index=1, name="card"))
    assert row(Machine(source="x", gpus=gpus), 1) == ["1", "card", "-"]


def test_a_column_of_which_nothing_is_reported_is_left_out() -> None:
    text = shown(Machine(source="x", gpus=(Gpu(index=0, name="card"),), missing={"gpus[*].pstate": "no"}))
    assert "Name" in text
    assert "P-state" not in text.partition("Not read")[0]
    assert "Temp" not in text


def test_a_lost_gpu_is_called_lost_in_its_row() -> None:
    gpus = (Gpu(index=0, name="card", pstate="P0"), Gpu(index=1, lost=True))
    missing = {"gpus[1].name": "GPU_IS_LOST", "gpus[1].pstate": "GPU_IS_LOST"}
    assert row(Machine(source="live", gpus=gpus, missing=missing), 1) == ["1", "?", "?", "LOST"]


def test_card_and_slot_of_two_generations_are_distinguished() -> None:
    pcie = Pcie(gen_now=1, gen_max=3, gen_max_device=4, gen_max_host=3, limiting_hop="0000:00:01.0")
    text = shown(Machine(source="live", gpus=tuple(Gpu(index=i, pcie=pcie) for i in (0, 1, 3))))
    assert "card 4, slot 3: GPUs 0-1,3" in text
    assert "0000:00:01.0 above GPU 3" in text


def test_the_table_becomes_two_where_the_screen_is_narrow() -> None:
    gpu = Gpu(index=0, name="NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", pstate="P0")
    gpu_two = Gpu(index=1, name="card", power_w=PowerW(draw=70.4, limit=300), pci_address="0000:01:00.0")
    machine = Machine(source="live", gpus=(gpu, gpu_two))
    assert shown(machine, 200).count("GPU  ") == 1
    narrow = shown(machine, 60)
    assert narrow.count("GPU  ") == 2
    assert "Workstation Edition" in narrow


@pytest.mark.parametrize("count", [1, 16])
def test_gpus_fit_80_columns_however_many(count: int) -> None:
    gpus = tuple(
        Gpu(
            index=i,
            name="NVIDIA H100 80GB HBM3 with a very long marketing name",
            pci_address=f"0000:{i:02x}:00.0",
            numa_node=1,
            pcie=Pcie(gen_now=5, gen_max=5, width_now=16, width_max=16),
            clocks_mhz=ClocksMhz(
                graphics=ClockMhz(now=1980, max=1980), memory=ClockMhz(now=14001, max=14001)
            ),
            pstate="P0",
            power_w=PowerW(draw=700.0, limit=1000.0),
            memory_mib=MemoryMib(used=181_559, total=183_359),
        )
        for i in range(count)
    )
    assert max(map(len, shown(Machine(source="live", gpus=gpus)).splitlines())) <= 80


@given(st.text(), st.text(), st.integers(40, 200))
def test_no_name_from_outside_breaks_a_line_or_moves_the_cursor(name: str, model: str, width: int) -> None:
    machine = Machine(source="live", host=Host(cpu_model=model), gpus=(Gpu(index=0, name=name, pstate="P0"),))
    text = shown(machine, width)
    assert all(character.isprintable() for character in text.replace("\n", ""))
    assert text.count("\nGPUs\n") == 1


UP = NicPort(
    index=0,
    rdma_device="mlx5_0",
    rdma_port=1,
    interface="ib0",
    link_layer="InfiniBand",
    state="ACTIVE",
    phys_state="LinkUp",
    rate_gbit_per_s=400.0,
    lanes=4,
)


def ports(machine: Machine) -> list[tuple[str, str]]:
    return rows_of(inspection_document(Inspection(machine=machine), "topology"), "Network ports")


def test_a_port_shows_state_and_rate() -> None:
    machine = Machine(source="ibstat", nics=(Nic(index=0, ports=(UP,)),))
    ((name, words),) = ports(machine)
    assert name == "mlx5_0"
    assert "link layer InfiniBand, state ACTIVE, physical state LinkUp, rate 400 Gbit/s, lanes x4" in words


def test_ports_in_the_pci_tree_and_cards_without_ports_are_left_out() -> None:
    address = "0000:17:00.0"
    nics = (Nic(index=0, pci_address=address, ports=(UP,)), Nic(index=1, name="mlx5_1"))
    machine = Machine(source="x", nics=nics, pci=(PciNode(address=address, root="pci0000:16", kind="nic"),))
    assert ports(machine) == []


def change(says: str, fact: str = "driver.version") -> Change:
    return Change(fact=fact, was=1, is_=2, says=says)


def power_limit(gpu: int) -> Change:
    fact = f"gpus[{gpu}].power_w.limit"
    return Change(fact=fact, was=250.0, is_=300.0, says=f"GPU {gpu}: power limit 250 W -> 300 W")


def difference(*changes: Change, compared: int = 3, one_sided: int = 0) -> Difference:
    return Difference(
        old_source="live", new_source="live", changes=changes, compared=compared, one_sided=one_sided
    )


def changes_shown(found: Difference) -> str:
    return document_text(difference_document(found), 60)


def test_each_change_has_a_line_and_what_gpus_share_is_reported_once() -> None:
    changes = (
        *map(power_limit, (0, 1, 3)),
        change("driver: version 1 -> 2"),
        change("GPU 5 (T4) is missing", "gpus[5]"),
        change("GPU 6 (T4) is missing", "gpus[6]"),
    )
    lines = changes_shown(difference(*changes)).splitlines()
    assert [line for line in lines if line.startswith("  - ")] == [
        "  - GPUs 0-1,3: power limit 250 W -> 300 W",
        "  - driver: version 1 -> 2",
        "  - GPU 5 (T4) is missing",
        "  - GPU 6 (T4) is missing",
    ]


def test_nothing_changed_is_reported() -> None:
    assert changes_shown(difference()) == (
        "Compared with live (left of ->)\n  No difference.\n  3 facts compared.\n"
    )


def test_two_sources_that_show_nothing_in_common_are_not_called_equal() -> None:
    text = changes_shown(difference(compared=0, one_sided=9))
    assert "Nothing could be compared." in text
    assert "No difference" not in text
    assert "9 facts that only one" in " ".join(text.split())


def test_a_long_change_is_folded() -> None:
    text = changes_shown(difference(change("network card " + "x" * 20 + " is " + "y " * 40)))
    assert max(map(len, text.splitlines())) <= 60


def test_markdown_has_a_list_or_states_that_nothing_changed() -> None:
    assert "\n- driver: a\\_b\n" in document_markdown(difference_document(difference(change("driver: a_b"))))
    assert "\nNo difference.\n" in document_markdown(difference_document(difference()))


def test_findings_that_came_went_and_stayed_are_shown() -> None:
    def finding(id: str) -> Finding:
        return Finding(id=id, severity="error", subject=Subject.of_gpus([1]), says=f"says of {id}")

    changes = FindingChanges(came=(finding("a.hot"),), went=(finding("b.slow"),))
    found = msgspec.structs.replace(difference(), findings=changes)
    text = changes_shown(found)
    assert text.index("No permanent fact differs.") < text.index("Findings only here") < text.index("a.hot")
    assert text.index("Findings only there") < text.index("b.slow")
    assert "stayed" not in text
    markdown = document_markdown(difference_document(found))
    assert "### Findings only here\n\n- **error** `a.hot` (GPU 1)\n  - says of a.hot\n" in markdown
