"""ibstat, ibstatus, ibv_devinfo and rdma link: ports, states and rates as the kernel names them."""

import pytest

from gputopo.captures import reading
from gputopo.findings import find
from gputopo.values.errors import InputError
from gputopo.values.machine import Machine, NicPort
from tests.kit.dialects import network
from tests.kit.dialects.network import RdmaPort

PORTS = (
    RdmaPort("mlx5_0", 400.0, lanes=4),
    RdmaPort("mlx5_1", None, state="DOWN", phys_state="Polling"),
    RdmaPort("roceP2p1s0f0", 100.0, lanes=4, link_layer="Ethernet"),
    RdmaPort("mlx5_bond_0", None, state="INIT", phys_state="LinkUp"),
)
TOOLS = {
    "ibstat": network.ibstat,
    "ibstatus": network.ibstatus,
    "ibv_devinfo": network.ibv_devinfo,
    "rdma link": network.rdma_link,
}


def read(text: str) -> Machine:
    return reading.read_text(text, origin="log")


def ports_of(machine: Machine) -> list[NicPort]:
    return [port for nic in machine.nics for port in nic.ports or ()]


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("mark", ["", "n1: ", "    "])
def test_each_tool_is_read_back(tool: str, mark: str) -> None:
    machine = read("".join(f"{mark}{line}\n" for line in TOOLS[tool](PORTS).splitlines()))
    assert (machine.source, machine.gpus, machine.unread) == (tool, (), ())
    assert [nic.name for nic in machine.nics] == [one.device for one in PORTS]
    for port, one in zip(ports_of(machine), PORTS, strict=True):
        assert (port.rdma_device, port.rdma_port) == (one.device, 1)
        assert (port.state, port.phys_state) == (one.state, one.phys_state)
        if tool != "rdma link":
            assert (port.link_layer, port.rate_gbit_per_s) == (one.link_layer, one.rate)
        if tool in ("ibstatus", "ibv_devinfo"):
            assert port.lanes == (one.lanes if one.link_layer == "InfiniBand" and one.rate else None)


def test_outputs_of_one_host_complete_one_another() -> None:
    machine = read(network.ibstat(PORTS) + network.ibv_devinfo(PORTS) + network.rdma_link(PORTS))
    (nic, *_) = machine.nics
    assert len(machine.nics) == len(PORTS)
    assert (nic.hca_type, nic.psid, nic.firmware_version) == ("MT4129", "MT_0000000838", "28.39.1002")
    assert [port.lanes for port in nic.ports or ()] == [4]


def test_the_same_names_with_other_guids_or_states_are_of_several_hosts() -> None:
    text = network.ibstat(PORTS)
    with pytest.raises(InputError, match=r"of several hosts.*node guid"):
        read(text + text.replace("Node GUID: 0x", "Node GUID: 0xf"))
    with pytest.raises(InputError, match=r"of several hosts.*port 1 of mlx5_0 has state"):
        read(text + text.replace("State: Active", "State: Down"))
    assert read(text + text) == read(text)


def test_a_port_that_is_slower_or_down_is_found_beside_those_of_its_chip() -> None:
    like = [RdmaPort(f"mlx5_{n}", 400.0, lanes=4) for n in range(4)]
    down = RdmaPort("mlx5_4", None, state="DOWN", phys_state="Disabled")
    machine = read(network.ibstat([*like, RdmaPort("mlx5_5", 200.0, lanes=4), down]))
    found = {(one.id, one.severity): one.says for one in find(machine) if one.id.startswith("nic.")}
    assert found == {
        ("nic.link_slow", "warning"): "mlx5_5: 200 Gbit/s, 400 Gbit/s on 4 like ports",
        ("nic.link_down", "warning"): "mlx5_4: link down (Disabled); up on 5 like ports",
    }


def test_ports_are_those_of_the_cards_in_a_matrix_by_name() -> None:
    matrix = (
        "\tGPU0\tNIC0\tNIC1\tCPU Affinity\n"
        "GPU0\t X \tPIX\tSYS\t0-7\nNIC0\tPIX\t X \tSYS\t\nNIC1\tSYS\tSYS\t X \t\n"
        "\nNIC Legend:\n\n  NIC0: mlx5_1\n  NIC1: mlx5_0\n\n"
    )
    machine = read(matrix + network.ibstat(PORTS[:2]))
    states = {nic.name: [port.state for port in nic.ports or ()] for nic in machine.nics}
    assert states == {"mlx5_1": ["DOWN"], "mlx5_0": ["ACTIVE"]}
    assert machine.unread == ()


def test_what_a_page_does_to_an_output_changes_nothing() -> None:
    text = network.ibstat(PORTS)
    bare = "\n\n".join(line.strip().replace("Port 1:", "port 1:") for line in text.splitlines())
    assert read(bare) == read(text)
    annotated = read(text.replace("State: Active\n", "State: Active  <- must be Active\n", 1))
    assert ports_of(annotated)[0].state is None
    assert [one.text for one in annotated.unread] == ["State: Active <- must be Active"]


def test_interfaces_and_firmware_are_added_to_the_ports() -> None:
    names = "mlx5_0 port 1 ==> ibp12s0 (Up)\n9/1: mlx5_1 port 1 ==> ens1 (Down)\n"
    devices = "0: mlx5_0: node_type ca fw 28.39.1002 node_guid a088:c203:00e3:c2a6 sys_image_guid 0:0:0:0\n"
    machine = read(names + devices)
    assert [(port.name, port.interface, port.up) for port in ports_of(machine)] == [
        ("mlx5_0", "ibp12s0", True),
        ("mlx5_1", "ens1", False),
    ]
    assert (machine.source, machine.nics[0].firmware_version) == ("ibdev2netdev + rdma dev", "28.39.1002")


def test_lines_behind_a_card_that_are_not_its_own_are_listed() -> None:
    machine = read(f"{network.ibstat(PORTS[:1])}Thermal: 41 C\nend\n")
    assert [one.text for one in machine.unread] == ["Thermal: 41 C", "end"]
