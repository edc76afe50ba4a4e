"""Every field declares what it is: its words, unit, names and whether it passes."""

import msgspec

from gputopo.values.fields import Fact, Field, Smi, field_at, fields_of, path_in_words
from gputopo.values.machine import Driver, Gpu, Host, Link, Machine, Nic, PciNode
from tests import there


def test_a_path_in_words() -> None:
    cases: list[tuple[type[msgspec.Struct], str, str]] = [
        (Gpu, "clocks_mhz.memory.max", "memory clock max"),
        (Gpu, "clocks_mhz", "clocks"),
        (Gpu, "power_w.limit", "power limit"),
        (Gpu, "pcie.width_now", "PCIe width now"),
        (Gpu, "pcie.aer.fatal", "PCIe AER errors fatal"),
        (Gpu, "ecc.corrected_volatile", "ECC corrected volatile"),
        (Gpu, "memory_mib.total", "memory total"),
        (Gpu, "numa_node", "NUMA node"),
        (Host, "numa_nodes[1].cpus", "NUMA node 1 CPUs"),
        (Gpu, "nvlinks[2].gb_per_s", "NVLink 2 speed"),
        (Gpu, "nvlinks[2].errors.crc_flit", "NVLink 2 errors crc flit"),
        (PciNode, "max_speed_gt_per_s", "max speed"),
        (Machine, "driver.cuda_version", "driver CUDA version"),
        (Gpu, "something_new", "something new"),
        (Gpu, "{}", "{}"),
    ]
    for kind, path, words in cases:
        assert path_in_words(kind, path) == words


def test_a_value_has_its_unit() -> None:
    cases: list[tuple[type[msgspec.Struct], str, object, str]] = [
        (Gpu, "clocks_mhz.memory.max", 4004, "4004 MHz"),
        (Gpu, "power_w.limit", 151.0, "151 W"),
        (Gpu, "pcie.width_max", 8, "x8"),
        (PciNode, "max_width", 8, "x8"),
        (Gpu, "memory_mib.total", 8114, "8114 MiB"),
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
        ("gpus[0].clocks_mhz.sm.max", "fixed", False),
        ("gpus[0].throttle.mask", "volatile", False),  # of the field around it
        ("gpus[0].pcie.gen_now", "state", False),
        ("gpus[0].ecc.counts.volatile.single_bit.cbu", "state", True),
        ("gpus[0].nvlinks[1].errors.replay", "state", True),
        ("gpus[0].persistence_mode", "setting", False),
        ("links[0-1].nvlinks", "setting", False),
        ("pci[0000:01:00.0].aer.fatal", "state", True),
        ("driver.version", "setting", False),
    ]
    for path, stability, counter in cases:
        field = field_at(Machine, path)
        assert (field.stability, field.counter) == (stability, counter)


def test_two_sources_agree_as_far_as_they_can() -> None:
    cases: list[tuple[type[msgspec.Struct], str, object, object, bool]] = [
        (Gpu, "name", "NVIDIA Tesla T4", "Tesla T4", True),
        (Gpu, "name", "Tesla T4", "Tesla P4", False),
        (Gpu, "pci_address", "00000000:01:00.0", "0000:01:00.0", True),
        (Gpu, "cpu_affinity", "0-3", "0,1,2,3", True),
        (Gpu, "cpu_affinity", "0-3", "N/A", False),
        (Gpu, "memory_mib.total", 40960, 40540, True),
        (Gpu, "memory_mib.total", 40960, 39000, False),
        (Link, "p2p_read", "NOT_SUPPORTED", "CHIPSET_NOT_SUPPORTED", True),
        (Link, "p2p_read", "NOT_SUPPORTED", "OK", False),
        (Gpu, "power_w.limit", 300.0, 301.0, False),
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


def test_an_unknown_path_is_a_field_of_its_own_name() -> None:
    assert field_at(Gpu, "new_one.now") == Field(path="new_one.now", fact=Fact(), words="new one.now")


def test_names_that_a_field_declares_for_the_fields_within_it_are_of_fields_there() -> None:
    for path, field in fields_of(Gpu).items():
        assert all(f"{path}.{name}" in fields_of(Gpu) for name in field.fact.smi_within), path
