import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.probes.aer_acs import aer_total, host_acs, read_acs, read_aer
from gputopo.probes.pci import interface_name, read_pci
from gputopo.reference import address_order, generation_of, parse_link_speed, parse_link_width
from gputopo.topology import slower_bridge
from gputopo.values.fields import kernel_address
from gputopo.values.machine import PciNode
from tests.kit.faults import broken
from tests.kit.machines import read
from tests.kit.scenarios import SCENARIOS, LinkSpec
from tests.kit.sysfs import config_space, write_aer, write_files, write_function, write_tree

GPU = ("10de", "20b0", "030200")


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


def test_nodes_come_in_pci_order(tmp_path: Path) -> None:
    for place in ("pci0000:00/0000:0b:00.0", "pci10000:00/10000:01:00.0", "pci0000:00/0000:05:00.0"):
        write_function(tmp_path, place, *GPU)
    assert addresses(read_pci(tmp_path)) == ["0000:05:00.0", "0000:0b:00.0", "10000:01:00.0"]


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


def test_without_sys_there_is_nothing(tmp_path: Path) -> None:
    assert read_pci(tmp_path) == ()
    assert read_pci(tmp_path / "not there") == ()


def test_missing_files_are_missing_facts(tmp_path: Path) -> None:
    folder = write_function(tmp_path, "pci0000:00/0000:01:00.0", *GPU, numa_node=-1)
    (folder / "device").unlink()
    (node,) = read_pci(tmp_path)
    assert (node.numa_node, node.device_id, node.driver, node.speed_gt_per_s, node.width) == (None,) * 5


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


def test_links_that_begin_with_sys_stay_within_the_root(tmp_path: Path) -> None:
    write_function(tmp_path, "pci0000:00/0000:00:01.0/0000:01:00.0", *GPU)
    link = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    link.unlink()
    link.symlink_to("/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0")
    assert addresses(read_pci(tmp_path)) == ["0000:00:01.0", "0000:01:00.0"]


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
        ("8.0 GT/s PCIe", 8.0),
        ("32.0 GT/s PCIe", 32.0),
        ("Unknown", None),
        ("Unknown speed", None),
        ("", None),
        (None, None),
    ],
)
def test_speeds_of_old_and_new_kernels_are_read(text: str | None, speed: float | None) -> None:
    assert parse_link_speed(text) == speed


@pytest.mark.parametrize(
    ("text", "width"),
    [
        ("16", 16),
        ("1", 1),
        ("0", None),
        ("255", None),
        ("63", None),
        ("x16", 16),
        ("²", None),
        (None, None),
    ],
)
def test_only_widths_that_exist_are_read(text: str | None, width: int | None) -> None:
    assert parse_link_width(text) == width


@given(st.text())
def test_no_text_breaks_the_readers_of_small_files(text: str) -> None:
    speed, width, address, total = (
        parse_link_speed(text),
        parse_link_width(text),
        kernel_address(text),
        aer_total(text),
    )
    assert speed is None or speed >= 0
    assert width is None or width in (1, 2, 4, 8, 12, 16, 32)
    assert address is None or kernel_address(address) == address
    assert total is None or total >= 0


@given(st.integers(0, 0xFFFFFF), st.integers(0, 255), st.integers(0, 31), st.integers(0, 7))
def test_an_address_round_trips_whatever_its_case_and_zeros(
    domain: int, bus: int, device: int, function: int
) -> None:
    kernel = f"{domain:04x}:{bus:02x}:{device:02x}.{function}"
    assert kernel_address(f"{domain:08X}:{bus:02X}:{device:02X}.{function}") == kernel
    assert address_order(kernel) == (domain, bus, device, function)


@pytest.mark.parametrize(
    ("speed", "number"), [(2.5, 1), (5.0, 2), (16.0, 4), (64.0, 6), (3.0, None), (None, None)]
)
def test_generations_follow_from_speeds(speed: float | None, number: int | None) -> None:
    assert generation_of(speed) == number


def write_way(root: Path, links: list[LinkSpec | None]) -> str:
    """Write a GPU under bridges, the root port first, and return the GPU's address."""
    place = "pci0000:00"
    for number, link in enumerate(links):
        place += f"/0000:{number:02x}:00.0"
        last = number == len(links) - 1
        write_function(root, place, *(GPU if last else ("10b5", "8747", "060400")), link)
    return place.rpartition("/")[2]


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
        ([], None),
    ],
)
def test_the_nearest_bridge_that_is_slower_than_the_card_is_named(
    tmp_path: Path, bridges: list[LinkSpec | None], limit: str | None
) -> None:
    gpu = write_way(tmp_path, [*bridges, LinkSpec(max_speed=16.0)])
    assert slower_bridge({node.address: node for node in read_pci(tmp_path)}, gpu) == limit


def test_bridges_in_a_circle_end() -> None:
    a = PciNode(address="0000:00:00.0", root="r", parent="0000:01:00.0", max_speed_gt_per_s=8.0, max_width=8)
    b = PciNode(address="0000:01:00.0", root="r", parent="0000:00:00.0")
    assert slower_bridge({a.address: a, b.address: b}, a.address) is None


def test_a_card_is_named_by_its_infiniband_device_before_its_network_interface(tmp_path: Path) -> None:
    folder = write_function(tmp_path, "pci0000:00/0000:01:00.0", "15b3", "1013", "020700")
    assert interface_name(tmp_path, "0000:01:00.0") is None
    (folder / "net/ib0").mkdir(parents=True)
    assert interface_name(tmp_path, "0000:01:00.0") == "ib0"
    (folder / "infiniband/mlx5_0").mkdir(parents=True)
    assert interface_name(tmp_path, "0000:01:00.0") == "mlx5_0"


@pytest.mark.skipif(not os.path.isdir("/sys/bus/pci/devices"), reason="this machine has no PCI in /sys")
def test_the_tree_of_this_machine_is_whole() -> None:
    nodes = read_pci(Path("/"))
    known = set(addresses(nodes))
    assert all(node.parent is None or node.parent in known for node in nodes)
    assert all(node.root for node in nodes)


def with_config(folder: Path, config: bytes) -> str:
    (folder / "config").write_bytes(config)
    return str(folder)


def header(number: int, following: int) -> bytes:
    return (number | 1 << 16 | following << 20).to_bytes(4, "little")


def test_one_file_that_is_not_there_costs_only_its_own_count(tmp_path: Path) -> None:
    assert read_aer(str(tmp_path)) is None
    write_aer(tmp_path, (7, 0, 1))
    (tmp_path / "aer_dev_nonfatal").unlink()
    assert read_aer(str(tmp_path)) == {"correctable": 7, "fatal": 1}


@pytest.mark.parametrize(
    ("text", "total"),
    [
        ("RxErr 2\nBadTLP 3\nTOTAL_ERR_COR 5", 5),
        ("Receiver Error 2\nBad TLP 3", 5),  # kernels from before there was a sum
        ("RxErr 2\nTOTAL_ERR_COR 18446744073709551615\n", 2**64 - 1),
        ("", None),
        ("no numbers here", None),
    ],
)
def test_the_sum_is_read_or_made(text: str, total: int | None) -> None:
    assert aer_total(text) == total


@pytest.mark.parametrize(
    ("control", "on"),
    [
        (0x00, False),
        (0x01, False),  # source validation alone redirects nothing
        (0x10, False),  # upstream forwarding hands on only what was redirected below
        (0x04, True),
        (0x08, True),
        (0x20, True),
        (0x1D, True),
        (0x40, False),
    ],
)
def test_only_what_redirects_peer_traffic_counts_as_access_control(
    tmp_path: Path, control: int, on: bool
) -> None:
    assert read_acs(with_config(tmp_path, config_space(control))) is on
    assert read_acs(with_config(tmp_path, config_space(control, 0xFF8))) is on, "at the very end"


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (bytes(64), "NOT_PERMITTED"),
        (bytes(256), "NO_EXTENDED_CONFIG_SPACE"),
        (b"\xff" * 4096, "UNREADABLE_CONFIG_SPACE"),
        (b"", "NOT_PERMITTED"),
        (config_space(None), False),
    ],
)
def test_config_space_that_cannot_be_read_has_a_reason_and_without_the_capability_nothing_goes_up(
    tmp_path: Path, config: bytes, reason: str | bool
) -> None:
    assert read_acs(str(tmp_path)) == "NOT_IN_PROC_OR_SYS"
    assert read_acs(with_config(tmp_path, config)) == reason


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open every file")
def test_a_file_that_may_not_be_opened_is_not_permitted(tmp_path: Path) -> None:
    folder = with_config(tmp_path, config_space(0))
    (tmp_path / "config").chmod(0)
    assert read_acs(folder) == "NOT_PERMITTED"


def test_a_folder_in_its_place_is_unreadable_and_capabilities_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "there/config").mkdir(parents=True)
    assert read_acs(str(tmp_path / "there")) == "UNREADABLE_CONFIG_SPACE"
    space = bytearray(4096)
    space[0x100:0x104] = header(1, 0x200)
    space[0x200:0x204] = header(2, 0x100)
    assert read_acs(with_config(tmp_path, bytes(space))) is False


@given(st.binary(max_size=700))
def test_no_config_space_breaks_the_reader(tmp_path_factory: pytest.TempPathFactory, config: bytes) -> None:
    folder = tmp_path_factory.mktemp("config")
    assert isinstance(read_acs(with_config(folder, bytes(256) + config)), (bool, str))


def node(address: str, parent: str | None, acs: bool | None = None, kind: str = "bridge") -> PciNode:
    return PciNode(address=address, root="pci0000:00", parent=parent, acs=acs, kind=kind)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("acs", "state"),
    [
        ((False, False), "off"),
        ((False, True), "on"),
        ((True, None), "on"),
        ((False, None), None),
        ((None, None), None),
    ],
)
def test_the_machine_has_access_control_where_any_bridge_above_a_gpu_has(
    tmp_path: Path, acs: tuple[bool | None, bool | None], state: str | None
) -> None:
    nodes = (
        node("0000:00:01.0", None, acs[0]),
        node("0000:01:00.0", "0000:00:01.0", acs[1]),
        node("0000:02:00.0", "0000:01:00.0", kind="gpu"),
        node("0000:00:1c.0", None, True),  # above no GPU
    )
    reported, reason = host_acs(nodes, tmp_path)
    assert reported == state
    assert bool(reason) == (state is None)


def test_without_a_gpu_below_a_bridge_nothing_is_reported(tmp_path: Path) -> None:
    assert host_acs((), tmp_path) == (None, "NO_BRIDGE_ABOVE_A_GPU")
    assert host_acs((node("0000:00:01.0", None, kind="gpu"),), tmp_path)[0] is None


@pytest.mark.parametrize(("fault", "state"), [(None, "off"), ("acs_on", "on"), ("no_privileges", None)])
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


def test_a_kernel_without_counters_is_a_reason(tmp_path: Path) -> None:
    scenario = broken("four")
    read(scenario, tmp_path)
    for file in tmp_path.rglob("aer_dev_*"):
        file.unlink()
    machine = read(scenario, tmp_path)
    assert machine.gpus[0].pcie.aer is None
    assert machine.missing["gpus[0].pcie.aer"] == "NO_AER_IN_SYS"
