"""What `gputopo inspect` shows of a machine, and of two readings of one."""

import msgspec
import pytest

from gputopo.report import difference_document, document_markdown, document_text, inspection_document
from gputopo.values.difference import Change, Difference, FindingChanges
from gputopo.values.finding import Finding, Inspection
from gputopo.values.machine import (
    ClockMhz,
    ClocksMhz,
    Driver,
    Gpu,
    GpuProcess,
    Host,
    LineCounts,
    Link,
    Machine,
    MemoryMib,
    Nic,
    NicPort,
    NumaNode,
    Pcie,
    PowerW,
    Unread,
)
from gputopo.values.subject import Subject
from tests.findings.boxes import all_of, find, gpu, sound
from tests.kit.machines import machine_of
from tests.report.shown import assert_golden, rows_of


def shown(machine: Machine, width: int = 80) -> str:
    return document_text(inspection_document(Inspection(machine=machine), "all"), width)


def row(machine: Machine, gpu: int, width: int = 200) -> list[str]:
    """Return the cells of a GPU's row in the one table of a wide screen."""
    lines = shown(machine, width).partition("\nGPUs\n")[2].splitlines()
    return next(line.split() for line in lines if line.split()[:1] == [str(gpu)])


def odd() -> Machine:
    """A host of which much is odd, and a capture that was not understood whole."""
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
    pcie = Pcie(gen_now=1, gen_max=3, gen_max_device=4, gen_max_host=3, limiting_hop="0000:00:01.0")
    process = GpuProcess(pid=7, kind="compute", name="/home/ann/bin/python x.py", user="ann", memory_mib=9)
    return Machine(
        source="a + b",
        host=host,
        driver=Driver(status="version_mismatch", version="560.2", kernel_module_version="550.1"),
        gpus=(
            Gpu(index=0, name="NVIDIA T4", pcie=pcie, pstate="P8"),
            Gpu(index=1, name="NVIDIA T4", pcie=pcie, pstate="P0", processes=(process,)),
            Gpu(index=3, lost=True),
        ),
        links=(Link(a=0, b=1, nvlinks=2, p2p_read="OK", p2p_write="OK"),),
        missing={"gpus[3].name": "GPU_IS_LOST", "gpus[*].fan_percent": "NOT_SUPPORTED"},
        unread=(
            Unread(source="a.txt", line=1, text="x" * 10_000),
            *(Unread(source="a.txt", line=n, text=f"odd \x1b[31m line {n}") for n in range(2, 31)),
        ),
        lines=(
            LineCounts(source="a", read=9, known=1, not_understood=30),
            LineCounts(source="b", read=2, known=0, not_understood=0),
        ),
    )


SCREENS = {
    "sick": all_of(
        gpu(1, remapped_rows={"failure": True}),
        gpu(2, recovery_action="reset"),
        gpu(3, power_w={"limit": 100.0}),
    )(sound()),
    "odd": odd(),
    "lost_gpu": machine_of("lost_gpu"),
    "dgx1": machine_of("dgx1"),
}


@pytest.mark.parametrize("name", SCREENS)
def test_a_machine_is_shown_as_it_was(name: str) -> None:
    """On the first screen, whole, and of one GPU."""
    machine = SCREENS[name]
    inspection = Inspection(machine=machine, findings=find(machine))
    documents = [inspection_document(inspection, detail) for detail in (None, "all", (1,))]
    assert_golden(f"inspect {name}", "\n".join(document_text(one, 100) for one in documents))


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


def test_a_fact_that_a_source_does_not_report_is_a_dash_and_of_nothing_there_is_no_column() -> None:
    gpus = (Gpu(index=0, name="card", pstate="P0"), Gpu(index=1, name="card"))
    assert row(Machine(source="x", gpus=gpus), 1) == ["1", "card", "-"]


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


def change(says: str, fact: str = "driver.version") -> Change:
    return Change(fact=fact, was=1, is_=2, says=says)


def power_limit(gpu: int) -> Change:
    fact = f"gpus[{gpu}].power_w.limit"
    return Change(fact=fact, was=250.0, is_=300.0, says=f"GPU {gpu}: power limit 250 W -> 300 W")


def finding(id: str) -> Finding:
    return Finding(id=id, severity="error", subject=Subject.of_gpus([1]), says=f"says of {id}")


SAME = Difference(old_source="live", new_source="live", compared=3)
CHANGES = (
    *map(power_limit, (0, 1, 3)),
    change("driver: version a_b -> 2"),
    change("GPU 5 (T4) is missing", "gpus[5]"),
    change("GPU 6 (T4) is missing", "gpus[6]"),
    change("network card " + "x" * 20 + " is " + "y " * 40),
)
DIFFERENCES = {
    "none": SAME,
    "nothing in common": msgspec.structs.replace(SAME, compared=0, one_sided=9),
    "changes": msgspec.structs.replace(SAME, changes=CHANGES),
    "findings": msgspec.structs.replace(
        SAME, findings=FindingChanges(came=(finding("a.hot"),), went=(finding("b.slow"),))
    ),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_difference_is_shown_as_it_was(name: str) -> None:
    document = difference_document(DIFFERENCES[name])
    text = document_text(document, 60)
    assert max(map(len, text.splitlines())) <= 60
    assert_golden(f"difference {name}", f"{text}\n{document_markdown(document)}")
