"""Subjects of findings: each has one text, and the text is read as the same subject."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.report import document_text, watched_document
from gputopo.values.facts import (
    EVERY,
    FactPath,
    at_gpu,
    at_link,
    at_numa_node,
    at_pci,
    item,
    single_facts,
    values_at,
)
from gputopo.values.finding import Finding
from gputopo.values.machine import Gpu, Host, Link, Machine, Nic, NumaNode, NvLink, PciNode
from gputopo.values.subject import DRIVER, MACHINE, Subject

gpus = st.integers(0, 40)
subjects = st.one_of(
    st.sampled_from([DRIVER, MACHINE]),
    st.builds(Subject.of_gpus, st.sets(gpus, min_size=1)),
    st.tuples(gpus, gpus).filter(lambda pair: pair[0] != pair[1]).map(lambda pair: Subject.of_link(*pair)),
)


def test_a_subject_has_one_text() -> None:
    cases: list[tuple[Subject, str]] = [
        (Subject.of_gpus([3]), "gpu:3"),
        (Subject.of_gpus([5, 0, 2, 1, 0]), "gpus:0-2,5"),
        (Subject.of_link(4, 1), "link:1-4"),
        (Subject.of_nics([2]), "nic:2"),
        (Subject.of_nics([2, 0, 1]), "nics:0-2"),
        (DRIVER, "driver"),
        (MACHINE, "machine"),
    ]
    for subject, text in cases:
        assert (subject.text, str(subject), Subject.parse(text)) == (text, text, subject)


@given(subjects)
def test_the_text_is_read_as_the_same_subject(subject: Subject) -> None:
    assert Subject.parse(subject.text) == subject


def test_another_text_is_no_subject() -> None:
    for text in [
        "",
        "gpu:",
        "gpus:3-1",
        "gpus:1,",
        "link:1-1",
        "link:a-b",
        "nic:",
    ]:
        with pytest.raises(ValueError, match="no subject such as gpu:3"):
            Subject.parse(text)


def test_several_subjects_in_words() -> None:
    cases: list[tuple[list[str], str]] = [
        (["gpu:3"], "GPU 3"),
        (["gpu:0", "gpu:1", "gpu:2", "gpu:5", "gpu:0", "driver"], "GPUs 0-2,5, driver"),
        (["gpus:0-2,6", "gpu:1", "gpus:1,4-6"], "GPUs 0-2,4-6"),
        (["link:0-1"], "link 0-1"),
        (["link:0-1", "link:2-3", "machine", "machine"], "links 0-1, 2-3, machine"),
        (["nic:1", "nics:0-1"], "network cards 0-1"),
    ]
    for texts, words in cases:
        subjects = map(Subject.parse, texts)
        found = [Finding(id="x", severity="info", subject=subject, says="it is") for subject in subjects]
        assert f"  {words}  x\n" in document_text(watched_document(found, None), 80)


RECORDED = Machine(
    source="a test",
    host=Host(kernel="6.8", numa_nodes=(NumaNode(index=1, cpus="0-3"),)),
    gpus=(Gpu(index=0, nvlinks=(NvLink(link=2, active=True),)), Gpu(index=3, fan_percent=30)),
    links=(Link(a=0, b=3, nvlinks=2),),
    nics=(Nic(index=1, name="mlx5_0"),),
    pci=(PciNode(address="0000:01:00.0", root="pci0000:00", aer={"fatal": 1}),),
)


def test_an_address_is_read_as_it_was_built() -> None:
    cases: list[tuple[str, tuple[str, str, str], tuple[int, ...]]] = [
        (at_gpu(3, "pcie.gen_now"), ("gpus", "3", "pcie.gen_now"), (3,)),
        (at_gpu(EVERY, "name"), ("gpus", "*", "name"), ()),
        (at_gpu(0, item("nvlinks", 2, "active")), ("gpus", "0", "nvlinks[2].active"), (0,)),
        (at_link(0, 1, "hop"), ("links", "0-1", "hop"), (0, 1)),
        (at_pci("0000:01:00.0", "kind"), ("pci", "0000:01:00.0", "kind"), ()),
        ("driver.version", ("driver", "", "version"), ()),
        (at_numa_node(1, "cpus"), ("host", "", "numa_nodes[1].cpus"), ()),
        ("gpus", ("gpus", "", ""), ()),
    ]
    for text, parts, indices in cases:
        path = FactPath.parse(text)
        assert (path.group, path.key, path.fact) == parts
        assert (path.indices, path.text) == (indices, text)


def test_an_address_is_followed() -> None:
    cases: list[tuple[str, list[object]]] = [
        ("gpus[3].fan_percent", [30]),
        ("gpus[*].fan_percent", [None, 30]),
        ("gpus[0].nvlinks[2].active", [True]),
        ("links[0-3].nvlinks", [2]),
        ("nics[1].name", ["mlx5_0"]),
        ("pci[0000:01:00.0].aer.fatal", [1]),
        ("host.numa_nodes[1].cpus", ["0-3"]),
        ("host.unheard_of", [None]),
    ]
    for text, values in cases:
        assert values_at(RECORDED, text) == values


def test_every_single_fact_has_its_address() -> None:
    for path, value in single_facts(RECORDED):
        if value not in ((), None) and "contradictions" not in path:
            assert values_at(RECORDED, path) == [value], path


def test_devices_are_renumbered() -> None:
    cases: list[tuple[str, str | None]] = [
        ("gpus[0].name", "gpus[5].name"),
        ("gpus[1].name", None),
        ("links[0-3].hop", "links[4-5].hop"),
        ("nics[0].hops.gpu:3", "nics[7].hops.gpu:4"),
        ("nics[0].hops.gpu:1", None),
        ("host.kernel", "host.kernel"),
    ]
    for text, new in cases:
        found = FactPath.parse(text).renumbered({0: 5, 3: 4}, {0: 7})
        assert (found and found.text) == new
