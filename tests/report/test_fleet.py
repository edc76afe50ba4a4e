from hypothesis import given
from hypothesis import strategies as st

from gputopo.findings import inspect_fleet
from gputopo.report import document_markdown, document_text, fleet_document
from gputopo.values import schema
from gputopo.values.errors import InputError
from gputopo.values.finding import Fleet, FleetKind
from gputopo.values.machine import Machine
from tests.invented_machines import machines
from tests.kit.machines import machine_of


@given(st.lists(machines(), min_size=1, max_size=4), st.integers(40, 120))
def test_any_hosts_can_be_compared_and_the_result_be_shown(hosts: list[Machine], width: int) -> None:
    found = inspect_fleet({f"n{number}": machine for number, machine in enumerate(hosts)})
    assert sum(len(kind.hosts) for kind in found.kinds) == len(hosts)
    assert max(map(len, document_text(fleet_document(found), width).splitlines())) <= width
    assert "\n### Hosts\n" in document_markdown(fleet_document(found))
    assert schema.encode(found)


def test_many_hosts_are_counted_and_those_without_a_reading_are_named() -> None:
    names = tuple(f"n{number:02}" for number in range(64))
    kinds = (FleetKind(name="8 x GPU", hosts=names, compared=1234),)
    text = " ".join(
        document_text(fleet_document(Fleet(kinds=kinds, unread=("n77",), outliers=("n03",))), 80).split()
    )
    assert "64 hosts 8 x GPU: n[00-63]; 1,234 facts compared" in text
    assert "Not read n77" in text
    assert "Outliers n03" in text
    assert "None: no host differs from the others of its kind." in text


def test_a_host_name_from_outside_is_shown_without_control_characters() -> None:
    machine = machine_of("four")
    found = inspect_fleet({"a\x1b[31m": machine, "b|c": InputError("x", "y"), "d": machine})
    assert "\x1b" not in document_text(fleet_document(found), 80)
    assert "\x1b" not in document_markdown(fleet_document(found))
