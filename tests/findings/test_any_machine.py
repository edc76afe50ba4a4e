"""No rule fails, whatever is missing or odd in a machine."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gputopo.findings import CHECKS, find
from gputopo.topology.peer_access import with_reasons
from gputopo.values.machine import (
    ClockMhz,
    ClocksMhz,
    Contradiction,
    Driver,
    Ecc,
    Gpu,
    GpuProcess,
    Hop,
    Host,
    Link,
    Machine,
    MemoryMib,
    Mig,
    NumaNode,
    NvLink,
    Pcie,
    PciNode,
    PowerW,
    RemappedRows,
    RetiredPages,
    TemperatureC,
    Throttle,
    UtilizationPercent,
)
from gputopo.values.schema import decode, encode
from tests.findings.boxes import IDS

NUMBERS = st.none() | st.sampled_from([0, 1, 2, 3, 4, 8, 16, 57, 87, 127, 405, 1530]) | st.integers(0, 20_000)
FLAGS = st.none() | st.booleans()
WATTS = st.none() | st.floats(0, 1000)
NAMES = st.none() | st.sampled_from(["Tesla V100-SXM2-16GB", "NVIDIA GeForce RTX 3090", "Unknown", "", "x"])
ADDRESSES = st.none() | st.sampled_from([f"0000:0{number}:00.0" for number in range(6)])
WORDS = st.none() | st.sampled_from(["OK", "NOT_SUPPORTED", "CHIPSET_NOT_SUPPORTED", "UNKNOWN", "?"])
KINDS = st.sampled_from(["fatal", "nonfatal", "correctable"])
COUNTS = st.none() | st.dictionaries(KINDS, st.integers(0, 999))
REASONS = st.lists(st.sampled_from(["gpu_idle", "hw_slowdown", "new"])).map(tuple)
PROCESSES = st.builds(
    GpuProcess, pid=st.just(1), kind=st.none() | st.sampled_from(["compute", "?"]), memory_mib=NUMBERS
)
CPUS = st.none() | st.sampled_from(["0-19", "", "?"])
FACTS = st.sampled_from(["gpus[7].name", "links[0-1].hop", ""])


def of(value: type, **fields: Any) -> st.SearchStrategy[Any]:
    return st.builds(value, **fields)


def numbers(value: type, *names: str, kind: st.SearchStrategy[Any] = NUMBERS) -> st.SearchStrategy[Any]:
    return st.builds(value, **dict.fromkeys(names, kind))


CLOCK = numbers(ClockMhz, "now", "max", "application", "boost")
MASKS = st.none() | st.integers(0, 0xFFFF)

GPUS = of(
    Gpu,
    index=st.integers(0, 5),
    cuda_index=st.none() | st.integers(0, 5),
    name=NAMES,
    pci_address=ADDRESSES,
    pci_device_id=st.none() | st.sampled_from(["20b0", "0000", "1e30"]),
    architecture=st.none() | st.sampled_from(["Volta", "Ampere"]),
    numa_node=st.none() | st.integers(-1, 2),
    cpu_affinity=st.none() | st.sampled_from(["0-19", "0-39", "", "nonsense", "9-1"]),
    clocks_mhz=of(ClocksMhz, graphics=CLOCK, sm=CLOCK, memory=CLOCK),
    pstate=st.none() | st.sampled_from(["P0", "P2", "P8", "?"]),
    throttle=of(Throttle, mask=MASKS, reasons=st.none() | REASONS),
    power_w=numbers(PowerW, "draw", "limit", "default_limit", "enforced_limit", kind=WATTS),
    temperature_c=numbers(
        TemperatureC,
        "gpu",
        "memory",
        "slowdown",
        "max_operating",
        "memory_max_operating",
        "margin",
        "margin_slowdown",
        kind=st.none() | st.integers(-50, 300),
    ),
    pcie=of(
        Pcie,
        gen_now=NUMBERS,
        gen_max=NUMBERS,
        gen_max_device=NUMBERS,
        gen_max_host=NUMBERS,
        width_now=NUMBERS,
        width_max=NUMBERS,
        replay_counter=NUMBERS,
        limiting_hop=ADDRESSES,
        aer=COUNTS,
    ),
    memory_mib=numbers(MemoryMib, "total", "used", "free"),
    bar1_mib=numbers(MemoryMib, "total"),
    utilization_percent=numbers(UtilizationPercent, "gpu", "memory"),
    ecc=of(Ecc, mode=FLAGS, mode_pending=FLAGS, uncorrected_volatile=NUMBERS, counts=COUNTS),
    remapped_rows=of(RemappedRows, pending=FLAGS, failure=FLAGS),
    retired_pages=of(RetiredPages, single_bit=NUMBERS, double_bit=NUMBERS, pending=FLAGS),
    mig=of(Mig, mode=FLAGS, mode_pending=FLAGS, instances=NUMBERS),
    compute_mode=st.none() | st.sampled_from(["default", "prohibited", "exclusive_process", "?"]),
    persistence_mode=FLAGS,
    processes=st.none() | st.lists(PROCESSES, max_size=5).map(tuple),
    nvlinks=st.none()
    | st.lists(
        of(
            NvLink,
            link=st.integers(0, 5),
            active=FLAGS,
            remote_pci_address=ADDRESSES,
            errors=st.dictionaries(st.sampled_from(["replay", "recovery", "crc_flit"]), st.integers(0, 500)),
        ),
        max_size=4,
    ).map(tuple),
    lost=st.booleans(),
    recovery_action=st.none() | st.sampled_from(["none", "reset", "reboot", "drain and reset", "?"]),
)


@st.composite
def links(draw: st.DrawFn) -> Link:
    low = draw(st.integers(0, 4))
    return Link(
        a=low,
        b=draw(st.integers(low + 1, 6)),
        hop=draw(st.none() | st.sampled_from(list(Hop))),
        nvlinks=draw(st.none() | st.integers(0, 6)),
        p2p_read=draw(WORDS),
        p2p_write=draw(WORDS),
    )


MACHINES = of(
    Machine,
    source=st.just("a test"),
    host=of(
        Host,
        numa_nodes=st.none()
        | st.lists(of(NumaNode, index=st.integers(0, 2), cpus=CPUS), max_size=3).map(tuple),
        iommu=st.none() | st.sampled_from(["off", "translated"]),
        acs=st.none() | st.sampled_from(["off", "on"]),
        container=st.none() | st.just("docker"),
        virtual_machine=st.none() | st.sampled_from(["none", "kvm"]),
    ),
    driver=of(
        Driver,
        status=st.sampled_from(["ok", "not_read", "failed", "no_device"]),
        version=st.none() | st.just("1"),
        kernel_module_version=st.none() | st.just("2"),
    ),
    gpus=st.lists(GPUS, max_size=5).map(tuple),
    links=st.lists(links(), max_size=6).map(tuple),
    pci=st.lists(
        of(
            PciNode,
            address=ADDRESSES.filter(bool),
            root=st.just("pci0000:00"),
            parent=ADDRESSES,  # also of itself, and in a circle
            kind=st.sampled_from(["gpu", "bridge", "nic"]),
            vendor_id=st.none() | st.just("8086"),
            max_speed_gt_per_s=st.none() | st.sampled_from([0.0, 2.5, 8.0]),
            max_width=NUMBERS,
            acs=FLAGS,
            aer=COUNTS,
        ),
        max_size=6,
    ).map(tuple),
    contradictions=st.lists(of(Contradiction, fact=FACTS, said=st.just({})), max_size=2).map(tuple),
)


@given(MACHINES)
def test_every_rule_stands_any_machine_and_its_findings_can_be_written(machine: Machine) -> None:
    for rule in CHECKS:
        for finding in rule(machine):
            assert finding.id in IDS
            assert finding.remedy
            assert "\n" not in finding.says
    with_reasons(machine)


def test_a_machine_of_which_nothing_is_known_has_nothing_wrong() -> None:
    assert find(Machine(source="a test")) == ()
    assert find(Machine(source="a test", gpus=(Gpu(index=0),))) == ()


@given(MACHINES)
def test_the_findings_are_the_same_for_a_machine_that_was_written_and_read(machine: Machine) -> None:
    again = decode(encode(machine), Machine, origin="a test")
    assert find(again) == find(machine)
