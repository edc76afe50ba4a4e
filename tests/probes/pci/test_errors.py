import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.probes.pci.errors import aer_total, host_acs, read_acs, read_aer
from gputopo.values.machine import PciNode
from tests.kit.faults import broken
from tests.kit.machines import read
from tests.kit.sysfs import config_space, write_aer, write_files

COUNTS = {"correctable": 7, "nonfatal": 0, "fatal": 1}


def with_config(folder: Path, config: bytes) -> str:
    (folder / "config").write_bytes(config)
    return str(folder)


def header(number: int, following: int) -> bytes:
    return (number | 1 << 16 | following << 20).to_bytes(4, "little")


def test_error_counters_are_the_totals_of_their_files(tmp_path: Path) -> None:
    write_aer(tmp_path, (7, 0, 1))
    assert read_aer(str(tmp_path)) == COUNTS


def test_without_counters_there_is_nothing(tmp_path: Path) -> None:
    assert read_aer(str(tmp_path)) is None


def test_one_file_that_is_not_there_costs_only_its_own_count(tmp_path: Path) -> None:
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


@given(st.text())
def test_no_text_breaks_the_sum(text: str) -> None:
    total = aer_total(text)
    assert total is None or total >= 0


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


def test_a_bridge_without_the_capability_sends_nothing_up(tmp_path: Path) -> None:
    assert read_acs(with_config(tmp_path, config_space(None))) is False


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (bytes(64), "NOT_PERMITTED"),
        (bytes(256), "NO_EXTENDED_CONFIG_SPACE"),
        (b"\xff" * 4096, "UNREADABLE_CONFIG_SPACE"),
        (b"", "NOT_PERMITTED"),
    ],
)
def test_config_space_that_cannot_be_read_has_a_reason(tmp_path: Path, config: bytes, reason: str) -> None:
    assert read_acs(with_config(tmp_path, config)) == reason


def test_no_file_is_a_reason_too(tmp_path: Path) -> None:
    assert read_acs(str(tmp_path)) == "NOT_IN_PROC_OR_SYS"
    (tmp_path / "config").mkdir()
    assert read_acs(str(tmp_path)) == "UNREADABLE_CONFIG_SPACE"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open every file")
def test_a_file_that_may_not_be_opened_is_not_permitted(tmp_path: Path) -> None:
    folder = with_config(tmp_path, config_space(0))
    (tmp_path / "config").chmod(0)
    assert read_acs(folder) == "NOT_PERMITTED"


def test_capabilities_in_a_circle_end(tmp_path: Path) -> None:
    space = bytearray(4096)
    space[0x100:0x104] = header(1, 0x200)
    space[0x200:0x204] = header(2, 0x100)
    assert read_acs(with_config(tmp_path, bytes(space))) is False


def test_the_capability_is_found_at_the_very_end(tmp_path: Path) -> None:
    assert read_acs(with_config(tmp_path, config_space(0x04, 0xFF8))) is True


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
    write_files(tmp_path, {"nothing": ""})
    machine = read(scenario, tmp_path)
    assert machine.gpus[0].pcie.aer is None
    assert machine.missing["gpus[0].pcie.aer"] == "NO_AER_IN_SYS"
