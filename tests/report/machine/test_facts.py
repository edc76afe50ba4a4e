import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gputopo.report import document_text, inspection_document
from gputopo.report.machine.facts import grouped_missing, not_read, reason_for, reason_in_words
from gputopo.values.finding import Inspection
from gputopo.values.machine import Gpu, Machine, NvLink


def test_the_same_reason_for_the_same_fact_on_all_gpus_is_reported_once() -> None:
    missing = {f"gpus[{i}].clocks_mhz.memory.now": "NOT_SUPPORTED" for i in range(8)}
    assert grouped_missing(missing) == {("GPUs 0-7", "NOT_SUPPORTED"): "memory clock now"}
    inspection = Inspection(machine=Machine(source="live", missing=missing))
    text = document_text(inspection_document(inspection, "all"))
    assert "GPUs 0-7  NOT_SUPPORTED, not supported by the card: memory clock now\n" in text


def test_facts_with_one_reason_share_a_group_and_another_reason_has_its_own() -> None:
    missing = {
        "gpus[0].pstate": "NOT_SUPPORTED",
        "gpus[1].pstate": "GPU_IS_LOST",
        "gpus[0].power_w.draw": "NOT_SUPPORTED",
        "gpus[0].power_w.limit": "NOT_SUPPORTED",
    }
    assert grouped_missing(missing) == {
        ("GPU 0", "NOT_SUPPORTED"): "P-state, power draw, power limit",
        ("GPU 1", "GPU_IS_LOST"): "P-state",
    }


def test_of_very_many_facts_some_are_named_and_the_rest_is_counted() -> None:
    missing = {f"gpus[0].ecc.counts.place{n}": "NO" for n in range(20)}
    (words,) = grouped_missing(missing).values()
    assert words.startswith("ECC counts place0, ECC counts place1, ")
    assert words.endswith("place11 and 8 more (--json)")


@pytest.mark.parametrize(
    ("path", "subject", "fact"),
    [
        ("gpus[*].name", "All GPUs", "name"),
        ("links[*].hop", "All links", "PCIe hop"),
        ("links[0-1].p2p_read", "Link 0-1", "peer read"),
        ("nics[2].name", "NIC 2", "name"),
        ("host.acs", "Host", "ACS"),
        ("host.numa_nodes[1].cpus", "Host", "NUMA node 1 CPUs"),
        ("driver.cuda_version", "Driver", "CUDA version"),
        ("bandwidth", "Bandwidth", "bandwidth"),
        ("gpus[3]", "GPU 3", "everything"),
        ("gpus[0].some_new_fact", "GPU 0", "some new fact"),
    ],
)
def test_who_lacks_a_fact_and_which_is_reported_in_words(path: str, subject: str, fact: str) -> None:
    assert grouped_missing({path: "no"}) == {(subject, "no"): fact}


def test_of_a_gpu_that_does_not_answer_the_facts_are_named() -> None:
    missing = {"gpus[3].name": "UNKNOWN", "gpus[3]": "UNKNOWN", "gpus[3].pstate": "NOT_SUPPORTED"}
    assert grouped_missing(missing) == {("GPU 3", "UNKNOWN"): "name", ("GPU 3", "NOT_SUPPORTED"): "P-state"}


def test_very_many_pairs_are_counted() -> None:
    missing = {f"links[{a}-{b}].p2p_read": "NO" for b in range(9) for a in range(b)}
    assert list(grouped_missing(missing)) == [("36 links", "NO")]


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("NOT_SUPPORTED", "NOT_SUPPORTED, not supported by the card"),
        ("CUDA_ORDER_NOT_CERTAIN", "CUDA order not certain"),
        ("the text has no column for it", "the text has no column for it"),
    ],
)
def test_a_reason_keeps_nvmls_name_and_gets_its_meaning(reason: str, words: str) -> None:
    assert reason_in_words(reason) == words


def test_a_reason_for_a_part_holds_for_the_facts_in_it() -> None:
    missing = {"gpus[0].clocks_mhz": "why"}
    assert reason_for(missing, "gpus[0].clocks_mhz.memory.now") == "why"
    assert reason_for(missing, "gpus[1].clocks_mhz.memory.now") is None
    assert reason_for(missing, "gpus[0].pstate") is None


@given(st.dictionaries(st.text(max_size=30), st.text(max_size=30)), st.integers(40, 160))
def test_any_path_and_reason_is_shown_without_breaking_the_page(missing: dict[str, str], width: int) -> None:
    text = document_text(
        inspection_document(Inspection(machine=Machine(source="live", missing=missing))), width
    )
    assert all(character.isprintable() for character in text.replace("\n", ""))


def test_a_whole_section_keeps_its_name() -> None:
    assert set(grouped_missing({"gpus": "none is shown"})) == {("GPUs", "none is shown")}
    assert set(grouped_missing({"nics": "none is shown"})) == {("NICs", "none is shown")}
    assert set(grouped_missing({"host.kernel": "not reported"})) == {("Host", "not reported")}


def fabric_of(*gpus: int | str, why: str) -> dict[str, str]:
    return {f"gpus[{gpu}].fabric.{name}": why for gpu in gpus for name in ("state", "status", "health")}


@pytest.mark.parametrize("why", ["NOT_SUPPORTED", "N/A", "Not Supported"])
def test_a_gpu_without_nvswitches_lacks_no_fabric(why: str) -> None:
    box = Machine(source="x", gpus=(Gpu(index=0), Gpu(index=1, nvlinks=(NvLink(link=0, remote_kind="gpu"),))))
    missing = fabric_of(0, 1, why=why) | {"gpus[0].fan_percent": why}
    assert not_read(replace(box, missing=missing)) == {"gpus[0].fan_percent": why}
    text = {"gpus[0].fabric.state": why, "gpus[1].fabric.state": why, "gpus[*].fabric.health": "not reported"}
    assert not_read(replace(box, missing=text)) == {}


def test_a_fabric_that_may_be_there_and_was_not_read_is_reported() -> None:
    switch = Machine(source="x", gpus=(Gpu(index=0, nvlinks=(NvLink(link=0, remote_kind="switch"),)),))
    refused = replace(switch, missing=fabric_of(0, why="NOT_SUPPORTED"))
    assert not_read(refused) == refused.missing
    for why in ("FUNCTION_NOT_FOUND", "NO_PERMISSION", "the output does not mention it"):
        reported = Machine(source="x", gpus=(Gpu(index=0),), missing=fabric_of(0, why=why))
        assert not_read(reported) == reported.missing
