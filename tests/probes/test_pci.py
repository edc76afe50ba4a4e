from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.probes import read_tree
from gputopo.reference import address_order, parse_link_speed, parse_link_width
from gputopo.topology import slower_bridge
from gputopo.values.fields import kernel_address
from gputopo.values.machine import PciNode
from tests.kit.faults import broken
from tests.kit.machines import read
from tests.kit.scenarios import SCENARIOS, LinkSpec
from tests.kit.sysfs import config_space, write_aer, write_files, write_function, write_tree

GPU = ("10de", "20b0", "030200")


def read_pci(root: Path) -> tuple[PciNode, ...]:
    return read_tree(root).pci


def addresses(nodes: tuple[PciNode, ...]) -> list[str]:
    return [node.address for node in nodes]


def by_address(nodes: tuple[PciNode, ...], address: str) -> PciNode:
    return next(node for node in nodes if node.address == address)


def test_a_gpu_is_read_with_every_bridge_up_to_its_root(tmp_path: Path) -> None:
    nodes = read_pci(write_tree(SCENARIOS["7gforce"], tmp_path))
    gpu = by_address(nodes, "0000:0a:00.0")
    assert (gpu.kind, gpu.root, gpu.parent) == ("gpu", "pci0000:00", "0000:09:08.0")
    assert (gpu.vendor_id, gpu.device_id, gpu.class_code, gpu.driver) == ("10de", "1b81", "030000", "nvidia")
    assert (gpu.numa_node, gpu.speed_gt_per_s, gpu.width, gpu.max_width) == (0, 8.0, 1, 16)
    switch = by_address(nodes, "0000:08:00.0")
    assert (switch.kind, switch.parent, switch.driver) == ("bridge", "0000:00:03.0", "pcieport")
    assert by_address(nodes, "0000:00:03.0").parent is None
    assert len(nodes) == 7 + 2 + 2 + 7


def test_sound_and_usb_functions_and_other_makers_cards_are_no_gpus(tmp_path: Path) -> None:
    write_function(tmp_path, "pci0000:00/0000:01:00.0", *GPU)
    write_function(tmp_path, "pci0000:00/0000:01:00.1", "10de", "10f0", "040300")
    write_function(tmp_path, "pci0000:00/0000:01:00.2", "10de", "1ad8", "0c0330")
    write_function(tmp_path, "pci0000:00/0000:02:00.0", "1002", "73bf", "030000")
    write_function(tmp_path, "pci0000:00/0000:03:00.0", "10de", "1af1", "068000")
    assert addresses(read_pci(tmp_path)) == ["0000:01:00.0"]


def test_ethernet_and_infiniband_are_network_cards_and_virtual_functions_are_not(tmp_path: Path) -> None:
    write_function(tmp_path, "pci0000:00/0000:01:00.0", "15b3", "1013", "020700")
    write_function(tmp_path, "pci0000:00/0000:02:00.0", "8086", "1572", "020000")
    virtual = write_function(tmp_path, "pci0000:00/0000:02:02.0", "8086", "154c", "020000")
    (virtual / "physfn").symlink_to("../0000:02:00.0")
    nodes = read_pci(tmp_path)
    assert [(node.address, node.kind) for node in nodes] == [("0000:01:00.0", "nic"), ("0000:02:00.0", "nic")]


def test_what_is_no_device_or_has_no_class_that_can_be_read_is_left_out(tmp_path: Path) -> None:
    folder = write_function(tmp_path, "pci0000:00/0000:01:00.0", *GPU)
    (folder / "class").unlink()
    (folder / "class").mkdir()
    (tmp_path / "sys/bus/pci/devices/0000:02:00.0").symlink_to("../../../devices/pci0000:00/0000:02:00.0")
    write_files(tmp_path / "sys/bus/pci/devices/README", {"vendor": "0x10de", "class": "0x030000"})
    assert read_pci(tmp_path) == ()


def test_a_parent_that_is_not_under_bus_pci_is_found_by_the_path(tmp_path: Path) -> None:
    write_function(tmp_path, "pci0000:5d/0000:5d:00.0/0000:5e:00.0", *GPU)
    nodes = read_pci(tmp_path)
    assert [(node.address, node.kind, node.parent) for node in nodes] == [
        ("0000:5d:00.0", "bridge", None),
        ("0000:5e:00.0", "gpu", "0000:5d:00.0"),
    ]


@pytest.mark.parametrize("above", ["pci0000:5d/0000:5d:05.5", "LNXSYSTM:00/LNXSYBUS:00/VMBUS:01/a-guid"])
def test_behind_a_vmd_or_below_other_devices_the_inner_root_counts(tmp_path: Path, above: str) -> None:
    write_function(tmp_path, f"{above}/pci10000:00/10000:00:02.0/10000:01:00.0", *GPU)
    gpu = by_address(read_pci(tmp_path), "10000:01:00.0")
    assert (gpu.root, gpu.parent) == ("pci10000:00", "10000:00:02.0")
    assert by_address(read_pci(tmp_path), "10000:00:02.0").parent is None


def test_a_tree_without_paths_gives_gpus_whose_root_is_not_known(tmp_path: Path) -> None:
    flat = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    write_files(flat, {"vendor": "0x10de", "class": "0x030000"})
    (node,) = read_pci(tmp_path)
    assert (node.address, node.root, node.parent) == ("0000:01:00.0", "", None)


@pytest.mark.parametrize(
    ("text", "speed"),
    [
        ("2.5 GT/s", 2.5),
        ("8 GT/s", 8.0),
        ("32.0 GT/s PCIe", 32.0),
        ("Unknown speed", None),
        (None, None),
    ],
)
def test_speeds_of_old_and_new_kernels_are_read(text: str | None, speed: float | None) -> None:
    assert parse_link_speed(text) == speed


@pytest.mark.parametrize(
    ("text", "width"),
    [
        ("16", 16),
        ("0", None),
        ("63", None),
        ("x16", 16),
        ("²", None),
    ],
)
def test_only_widths_that_exist_are_read(text: str | None, width: int | None) -> None:
    assert parse_link_width(text) == width


@given(st.text())
def test_no_text_breaks_the_readers_of_small_files(text: str) -> None:
    speed, width, address = parse_link_speed(text), parse_link_width(text), kernel_address(text)
    assert speed is None or speed >= 0
    assert width is None or width in (1, 2, 4, 8, 12, 16, 32)
    assert address is None or kernel_address(address) == address


@given(st.integers(0, 0xFFFFFF), st.integers(0, 255), st.integers(0, 31), st.integers(0, 7))
def test_an_address_round_trips_whatever_its_case_and_zeros(
    domain: int, bus: int, device: int, function: int
) -> None:
    kernel = f"{domain:04x}:{bus:02x}:{device:02x}.{function}"
    assert kernel_address(f"{domain:08X}:{bus:02X}:{device:02X}.{function}") == kernel
    assert address_order(kernel) == (domain, bus, device, function)


def write_way(root: Path, links: list[LinkSpec | None]) -> Path:
    """Write a GPU under bridges, the root port first, and return the GPU's folder."""
    place = "pci0000:00"
    for number, link in enumerate(links):
        place += f"/0000:{number:02x}:00.0"
        last = number == len(links) - 1
        write_function(root, place, *(GPU if last else ("10b5", "8747", "060400")), link)
    return root / "sys/devices" / place


@pytest.mark.parametrize(
    ("bridges", "limit"),
    [
        ([LinkSpec(max_speed=16.0)], None),
        ([LinkSpec(max_speed=8.0)], "0000:00:00.0"),
        ([LinkSpec(max_speed=16.0, max_width=8)], "0000:00:00.0"),
        ([LinkSpec(max_speed=32.0, max_width=8)], None),
        (
            [LinkSpec(max_speed=8.0), LinkSpec(max_speed=16.0, max_width=4), LinkSpec(max_speed=16.0)],
            "0000:01:00.0",
        ),
        ([LinkSpec(max_speed=8.0), None, LinkSpec(max_speed=16.0)], "0000:00:00.0"),
        ([None], None),
    ],
)
def test_the_nearest_bridge_that_is_slower_than_the_card_is_named(
    tmp_path: Path, bridges: list[LinkSpec | None], limit: str | None
) -> None:
    write_way(tmp_path, [*bridges, LinkSpec(max_speed=16.0)])
    assert read_tree(tmp_path).gpus[0].pcie.limiting_hop == limit


def test_bridges_in_a_circle_end() -> None:
    a = PciNode(address="0000:00:00.0", root="r", parent="0000:01:00.0", max_speed_gt_per_s=8.0, max_width=8)
    b = PciNode(address="0000:01:00.0", root="r", parent="0000:00:00.0")
    assert slower_bridge({a.address: a, b.address: b}, a.address) is None


def test_one_file_that_is_not_there_costs_only_its_own_count(tmp_path: Path) -> None:
    gpu = write_way(tmp_path, [None])
    assert read_pci(tmp_path)[0].aer is None
    write_aer(gpu, (7, 0, 1))
    (gpu / "aer_dev_nonfatal").unlink()
    assert read_pci(tmp_path)[0].aer == {"correctable": 7, "fatal": 1}


@pytest.mark.parametrize(
    ("text", "total"),
    [
        ("RxErr 2\nBadTLP 3\nTOTAL_ERR_COR 5", 5),
        ("Receiver Error 2\nBad TLP 3", 5),  # kernels from before there was a sum
        ("no numbers here", None),
    ],
)
def test_the_sum_is_read_or_made(text: str, total: int | None, tmp_path: Path) -> None:
    write_files(write_way(tmp_path, [None]), {"aer_dev_correctable": text})
    assert (read_pci(tmp_path)[0].aer or {}).get("correctable") == total


def acs(root: Path, *configs: bytes | None) -> str | None:
    """Write a GPU under bridges with these config spaces (None: no file), and return the machine's ACS.

    If it is not known, the reason.
    """
    gpu = write_way(root, [*[None] * len(configs), None])
    for bridge, config in zip(reversed(gpu.parents[: len(configs)]), configs, strict=True):
        if config is not None:
            (bridge / "config").write_bytes(config)
    machine = read_tree(root)
    return machine.host.acs or machine.missing["host.acs"]


def header(number: int, following: int) -> bytes:
    return (number | 1 << 16 | following << 20).to_bytes(4, "little")


@pytest.mark.parametrize(
    ("control", "state", "offset"),
    [
        (0x01, "off", 0x148),  # source validation alone redirects nothing
        (0x10, "off", 0x148),  # upstream forwarding hands on only what was redirected below
        (0x04, "on", 0x148),
        (0x08, "on", 0x148),
        (0x20, "on", 0xFF8),  # at the very end
        (0x40, "off", 0xFF8),
    ],
)
def test_only_what_redirects_peer_traffic_counts_as_access_control(
    tmp_path: Path, control: int, state: str, offset: int
) -> None:
    assert acs(tmp_path, config_space(control, offset)) == state


@pytest.mark.parametrize(
    ("config", "state"),
    [
        (bytes(64), "NOT_PERMITTED"),
        (bytes(256), "NO_EXTENDED_CONFIG_SPACE"),
        (b"\xff" * 4096, "UNREADABLE_CONFIG_SPACE"),
        (config_space(None), "off"),
        (bytes(256) + header(1, 0x200) + bytes(252) + header(2, 0x100) + bytes(1000), "off"),  # in a circle
    ],
)
def test_config_space_that_cannot_be_read_has_a_reason_and_without_the_capability_nothing_goes_up(
    tmp_path: Path, config: bytes | None, state: str
) -> None:
    assert acs(tmp_path, config) == state


@given(st.binary(max_size=700))
def test_no_config_space_breaks_the_reader(tmp_path_factory: pytest.TempPathFactory, config: bytes) -> None:
    assert acs(tmp_path_factory.mktemp("config"), bytes(256) + config)


ON, OFF = config_space(0x04), config_space(0)


@pytest.mark.parametrize(
    ("bridges", "state"),
    [
        ((OFF, OFF), "off"),
        ((OFF, ON), "on"),
        ((ON, None), "on"),
        ((OFF, None), "NOT_IN_PROC_OR_SYS"),
        ((), "NO_BRIDGE_ABOVE_A_GPU"),
    ],
)
def test_the_machine_has_access_control_where_any_bridge_above_a_gpu_has(
    tmp_path: Path, bridges: tuple[bytes | None, ...], state: str
) -> None:
    elsewhere = write_function(tmp_path, "pci0000:00/0000:00:1c.0/0000:1c:00.0", "15b3", "1013", "020700")
    (elsewhere.parent / "config").write_bytes(ON)  # above no GPU
    assert acs(tmp_path, *bridges) == state


@pytest.mark.parametrize(("fault", "state"), [("acs_on", "on"), ("no_privileges", None)])
def test_access_control_is_read_from_the_tree(tmp_path: Path, fault: str | None, state: str | None) -> None:
    machine = read(broken("four", *([fault] if fault else [])), tmp_path)
    assert machine.host.acs == state
    assert machine.missing.get("host.acs") == (None if state else "NOT_PERMITTED")
    bridges = {node.acs for node in machine.pci if node.kind == "bridge"}
    assert bridges == {{"off": False, "on": True, None: None}[state]}
    assert {node.acs for node in machine.pci if node.kind != "bridge"} == {None}


def test_the_errors_of_a_gpu_are_reported_with_its_link(tmp_path: Path) -> None:
    machine = read(broken("four", "aer_errors@2"), tmp_path)
    assert machine.gpus[2].pcie.aer == {"correctable": 1200, "nonfatal": 3, "fatal": 0}
    assert machine.gpus[0].pcie.aer == {"correctable": 0, "nonfatal": 0, "fatal": 0}
