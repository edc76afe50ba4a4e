"""Every field declares what it is: its words, unit, names and whether it passes."""

import msgspec

from gputopo.values.fields import Smi, field_at, fields_of, path_in_words
from gputopo.values.machine import Driver, Gpu, Host, Link, Machine, Nic, PciNode
from tests import there


def test_a_path_in_words() -> None:
    cases: list[tuple[type[msgspec.Struct], str, str]] = [
        (Gpu, "clocks_mhz.memory.max", "memory clock max"),
        (Gpu, "pcie.width_now", "PCIe width now"),
        (Gpu, "pcie.aer.fatal", "PCIe AER errors fatal"),
        (Host, "numa_nodes[1].cpus", "NUMA node 1 CPUs"),
        (Gpu, "nvlinks[2].gb_per_s", "NVLink 2 speed"),
        (PciNode, "max_speed_gt_per_s", "max speed"),
        (Machine, "driver.cuda_version", "driver CUDA version"),
        (Gpu, "something_new", "something new"),
    ]
    for kind, path, words in cases:
        assert path_in_words(kind, path) == words


def test_a_value_has_its_unit() -> None:
    cases: list[tuple[type[msgspec.Struct], str, object, str]] = [
        (Gpu, "power_w.limit", 151.0, "151 W"),
        (Gpu, "pcie.width_max", 8, "x8"),
        (PciNode, "max_speed_gt_per_s", 8.0, "8 GT/s"),
        (Gpu, "nvlinks[2].gb_per_s", 25.781, "25.781 GB/s"),
        (Gpu, "persistence_mode", True, "on"),
        (Gpu, "persistence_mode", False, "off"),
        (Gpu, "fan_percent", 30, "30%"),
        (Gpu, "name", None, "not reported"),
        (Gpu, "name", "card", "card"),
    ]
    for kind, path, value, words in cases:
        assert field_at(kind, path).value_in_words(value) == words


def test_a_fact_is_fixed_or_passes() -> None:
    cases: list[tuple[str, str, bool]] = [
        ("gpus[0].clocks_mhz.sm.now", "volatile", False),
        ("gpus[0].throttle.mask", "volatile", False),  # of the field around it
        ("gpus[0].ecc.counts.volatile.single_bit.cbu", "state", True),
        ("gpus[0].nvlinks[1].errors.replay", "state", True),
        ("gpus[0].persistence_mode", "setting", False),
        ("links[0-1].nvlinks", "setting", False),
        ("pci[0000:01:00.0].aer.fatal", "state", True),
    ]
    for path, stability, counter in cases:
        field = field_at(Machine, path)
        assert (field.stability, field.counter) == (stability, counter)


def test_two_sources_agree_as_far_as_they_can() -> None:
    cases: list[tuple[type[msgspec.Struct], str, object, object, bool]] = [
        (Gpu, "name", "NVIDIA Tesla T4", "Tesla T4", True),
        (Gpu, "pci_address", "00000000:01:00.0", "0000:01:00.0", True),
        (Gpu, "cpu_affinity", "0-3", "0,1,2,3", True),
        (Gpu, "cpu_affinity", "0-3", "N/A", False),
        (Gpu, "memory_mib.total", 40960, 40540, True),
        (Link, "p2p_read", "NOT_SUPPORTED", "CHIPSET_NOT_SUPPORTED", True),
        (Link, "p2p_read", "NOT_SUPPORTED", "OK", False),
    ]
    for kind, path, a, b, same in cases:
        assert field_at(kind, path).same(a, b) is same


def test_a_fact_has_its_names_in_other_tools() -> None:
    clock = field_at(Gpu, "clocks_mhz.memory.now")
    assert clock.smi == Smi(
        xml="clocks/mem_clock", text="Clocks/Memory", csv=("clocks.current.memory", "clocks.mem")
    )
    assert there(clock.metric).name == "gpu_clock_hertz"
    bar1 = field_at(Gpu, "bar1_mib.total")
    assert (there(bar1.smi).csv, there(bar1.metric).name) == ((), "gpu_bar1_size_bytes")


def test_every_field_is_found_and_its_number_has_a_unit_where_its_name_does() -> None:
    cases: list[type[msgspec.Struct]] = [Gpu, Host, Driver, Link, Nic, PciNode]
    for kind in cases:
        units = {"mhz": "MHz", "w": "W", "c": "C", "mib": "MiB", "percent": "%", "ns": "ns"}
        for path, field in fields_of(kind).items():
            ends = {units[word] for name in path.split(".") if (word := name.rpartition("_")[2]) in units}
            assert not ends or field.unit in ends, path


def test_the_peers_of_a_model_agree_on_what_the_hardware_or_an_administrator_gives() -> None:
    marked = {path: field for path, field in fields_of(Gpu).items() if field.fact.peers}
    assert {"memory_mib.total", "clocks_mhz.memory.max", "ecc.mode"} <= marked.keys()
    assert {field.stability for field in marked.values()} == {"fixed", "setting"}
