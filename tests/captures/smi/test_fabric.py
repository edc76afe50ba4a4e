"""What `nvidia-smi` shows of a GPU and its NVSwitches, in its three output formats."""

import pytest

from gputopo.captures import merge, read_text
from gputopo.values.machine import Fabric, Machine

TEXT = """GPU 00000000:01:00.0
    Product Name : NVIDIA H100 80GB HBM3
    Fabric
        State : {state}
        Status : {status}
        CliqueId : 0
        ClusterUUID : 00000000-0000-0000-0000-000000000000
        Health
            Summary : {summary}
            Bandwidth : {bandwidth}
            Route Recovery in progress : False
            Route Unhealthy : False
            Access Timeout Recovery : False
            Incorrect Configuration : None
            Partition Assigned : N/A
    Persistence Mode : Enabled
    Clocks
        SM : 1980 MHz
"""
XML = """<?xml version="1.0" ?>
<nvidia_smi_log>
<gpu id="00000000:01:00.0">
<product_name>NVIDIA H100 80GB HBM3</product_name>
<fabric>
<state>{state}</state><status>{status}</status><cliqueId>0</cliqueId>
<clusterUuid>00000000-0000-0000-0000-000000000000</clusterUuid>
<health><summary>{summary}</summary><bandwidth>{bandwidth}</bandwidth>
<route_recovery_in_progress>False</route_recovery_in_progress><route_unhealthy>False</route_unhealthy>
<access_timeout_recovery>False</access_timeout_recovery>
<incorrect_configuration>None</incorrect_configuration></health>
</fabric>
</gpu>
</nvidia_smi_log>
"""
CSV = (
    "pci.bus_id, fabric.state, fabric.status, fabric.cliqueId, "
    "fabric.health.summary, fabric.health.bandwidth\n"
    "00000000:01:00.0, {state}, {status}, 0, {summary}, {bandwidth}\n"
)
OTHERS = {
    "route_recovery_in_progress": "false",
    "route_unhealthy": "false",
    "access_timeout_recovery": "false",
    "incorrect_configuration": "none",
}


def said(text: str, **words: str) -> str:
    return text.format(
        **{"state": "Completed", "status": "Success", "summary": "Healthy", "bandwidth": "Full", **words}
    )


def flat(text: str) -> str:
    return "\n".join(line.strip() for line in text.splitlines())


def fabric(machine: Machine) -> Fabric:
    assert machine.unread == ()
    return machine.gpus[0].fabric


def read(text: str) -> Machine:
    return read_text(text, origin="box.txt")


@pytest.mark.parametrize("form", [str, flat])
@pytest.mark.parametrize("state", ["Completed", "In Progress", "Not Started"])
def test_text_shows_it_indented_or_not(form: type[str], state: str) -> None:
    machine = read(form(said(TEXT, state=state, summary="Limited Capacity", bandwidth="Degraded")))
    health = {"summary": "limited capacity", "bandwidth": "degraded", **OTHERS}
    assert fabric(machine) == Fabric(state=state.lower(), status="success", clique_id=0, health=health)
    assert machine.gpus[0].persistence_mode is True
    assert machine.gpus[0].clocks_mhz.sm.now == 1980


def test_xml_shows_the_same_as_text() -> None:
    assert fabric(read(said(XML))) == fabric(read(said(TEXT)))


def test_csv_shows_it_by_columns() -> None:
    machine = read(said(CSV, status="Insufficient Resources"))
    health = {"summary": "healthy", "bandwidth": "full"}
    expected = Fabric(state="completed", status="insufficient resources", clique_id=0, health=health)
    assert fabric(machine) == expected


def test_a_driver_that_writes_the_names_into_the_csv_values_is_understood() -> None:
    machine = read(said(CSV, state="state  Completed", status="status Success"))
    assert (fabric(machine).state, fabric(machine).status) == ("completed", "success")


@pytest.mark.parametrize("reason", ["N/A", "Not Supported", "Unknown Error"])
def test_a_card_without_nvswitches_has_the_reason(reason: str) -> None:
    lines = (
        "    Fabric\n        State : {0}\n        Status : {0}\n        Health\n            Bandwidth : {0}\n"
    )
    machine = read(f"GPU 00000000:01:00.0\n    Product Name : NVIDIA L4\n{lines.format(reason)}")
    assert fabric(machine) == Fabric()
    for name in ("state", "status", "health"):
        assert machine.missing[f"gpus[0].fabric.{name}"] == reason


def test_a_fabric_that_came_up_between_two_captures_is_no_contradiction() -> None:
    before, after = (read(said(TEXT, state=state)) for state in ("In Progress", "Completed"))
    assert merge([before, after]).contradictions == ()
