from itertools import combinations

import pytest
from msgspec.structs import replace

from gputopo.values.machine import Contradiction, Hop
from tests.findings.boxes import all_of, driver, find, host, pair, sound

VIRTUAL = host(virtual_machine="kvm")


def test_a_container_without_the_bus_is_reported() -> None:
    (found,) = find(replace(host(container="docker")(sound()), pci=()))
    assert (found.id, found.severity) == ("topology.hidden", "info")
    assert "docker" in found.says
    assert len(found.evidence["not_on_the_bus"]) == 4


def test_a_virtual_machine_in_which_all_pairs_look_alike_may_hide_the_truth() -> None:
    alike = all_of(VIRTUAL, *(pair(a, b, hop=Hop.PHB) for a, b in combinations(range(4), 2)))
    (found,) = find(alike(sound()))
    assert found.id == "topology.hidden"
    assert "kvm" in found.says


def test_a_driver_whose_module_is_of_another_version_is_a_warning_while_it_answers() -> None:
    (found,) = find(driver(kernel_module_version="535.54.03")(sound()))
    assert (found.id, found.severity, found.subject.text) == ("driver.version_mismatch", "warning", "driver")
    assert "550.163.01" in found.says
    assert "535.54.03" in found.says


@pytest.mark.parametrize(
    ("fact", "id", "subject", "words"),
    [
        (
            "links[0-3].hop",
            "topology.contradiction",
            "link:0-3",
            "sources disagree on the topology of GPUs 0 and 3: x (a); y (b)",
        ),
        (
            "host.numa_nodes[1].cpus",
            "machine.contradiction",
            "machine",
            "sources disagree on the host NUMA node 1 CPUs: x (a)",
        ),
    ],
)
def test_a_contradiction_names_its_fact(fact: str, id: str, subject: str, words: str) -> None:
    reported = (Contradiction(fact=fact, said={"a": "x", "b": "y"}),)
    found = next(one for one in find(replace(sound(), contradictions=reported)) if one.id == id)
    assert (found.subject.text, found.severity) == (subject, "warning")
    assert found.says.startswith(words)
    assert found.says.endswith("y (b); the first is used")


def test_classes_that_the_legend_excludes_are_doubted_with_the_pairs() -> None:
    machine = all_of(*(pair(a, b, hop=Hop.SYS) for a, b in combinations(range(4), 2)))(sound())
    (found,) = find(machine)
    assert (found.id, found.severity) == ("topology.doubtful", "warning")
    assert "SYS between GPUs of one NUMA node" in found.says
    assert len(found.evidence["pairs"]) == 6
    assert "gputopo bandwidth" in (found.remedy or "")
