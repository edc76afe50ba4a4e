"""What could not be read: grouped by device and reason, in words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.report import document_text, inspection_document
from gputopo.values.finding import Inspection
from gputopo.values.machine import Gpu, Machine, NvLink
from tests.report.shown import rows_of


def not_read(missing: dict[str, str], *gpus: Gpu) -> dict[str, str]:
    """Return the rows of what was not read: `{"GPU 0": "NO: name"}`, of several reasons the last one."""
    machine = Machine(source="x", gpus=gpus, missing=missing)
    return dict(rows_of(inspection_document(Inspection(machine=machine), "all"), "Not read"))


def many(path: str, why: str, *keys: object) -> dict[str, str]:
    return {path.replace("?", str(key)): why for key in keys}


NO_DRAW = {"gpus[0].power_w.draw": "NO", "gpus[0].power_w.limit": "NO"}


@pytest.mark.parametrize(
    ("missing", "rows"),
    [
        # The same reason for the same fact is reported once, with the meaning of NVML's name.
        (
            many("gpus[?].clocks_mhz.memory.now", "NOT_SUPPORTED", *range(8)),
            {"GPUs 0-7": "NOT_SUPPORTED, not supported by the card: memory clock now"},
        ),
        # Another reason has its own row.
        (
            {"gpus[0].pstate": "NO", "gpus[1].pstate": "YES", **NO_DRAW},
            {"GPU 0": "no: P-state, power draw, power limit", "GPU 1": "yes: P-state"},
        ),
        # The facts of a GPU that does not answer are named.
        (
            {"gpus[3].name": "UNKNOWN", "gpus[3]": "UNKNOWN"},
            {"GPU 3": "UNKNOWN, the driver does not know: name"},
        ),
        # A whole section keeps its name.
        ({"gpus": "none is shown"}, {"GPUs": "none is shown: gpus"}),
        ({"gpus[*].name": "no"}, {"All GPUs": "no: name"}),
        ({"links[0-1].p2p_read": "no"}, {"Link 0-1": "no: peer read"}),
        ({"host.numa_nodes[1].cpus": "no"}, {"Host": "no: NUMA node 1 CPUs"}),
        ({"driver.cuda_version": "no"}, {"Driver": "no: CUDA version"}),
        ({"gpus[3]": "no"}, {"GPU 3": "no: everything"}),
        ({"gpus[0].some_new_fact": "no"}, {"GPU 0": "no: some new fact"}),
        ({"gpus[0].name": "CUDA_ORDER_NOT_CERTAIN"}, {"GPU 0": "CUDA order not certain: name"}),
        (
            {f"links[{a}-{b}].p2p_read": "no" for b in range(9) for a in range(b)},
            {"36 links": "no: peer read"},
        ),
    ],
)
def test_who_lacks_which_fact_and_why_is_reported_in_words(
    missing: dict[str, str], rows: dict[str, str]
) -> None:
    assert not_read(missing) == rows


def test_of_very_many_facts_some_are_named_and_the_rest_is_counted() -> None:
    words = not_read(many("gpus[0].ecc.counts.place?", "NO", *range(20)))["GPU 0"]
    assert words.startswith("no: ECC counts place0, ECC counts place1, ")
    assert words.endswith("place11 and 8 more (--json)")


def test_a_reason_for_a_part_holds_for_the_facts_in_it() -> None:
    """So of GPU 1 alone the power is unread: GPU 0 was asked and cannot say."""
    gpus = (Gpu(index=0, pstate="P0"), Gpu(index=1, pstate="P0"))
    machine = Machine(source="live", gpus=gpus, missing={"gpus[0].power_w": "NOT_SUPPORTED"})
    assert "power of GPU 1" in inspection_document(Inspection(machine=machine)).answer


@given(st.dictionaries(st.text(max_size=30), st.text(max_size=30)), st.integers(40, 160))
def test_any_path_and_reason_is_shown_without_breaking_the_page(missing: dict[str, str], width: int) -> None:
    text = document_text(
        inspection_document(Inspection(machine=Machine(source="live", missing=missing))), width
    )
    assert all(character.isprintable() for character in text.replace("\n", ""))


def test_a_path_and_a_reason_from_outside_do_not_break_the_page() -> None:
    odd = "\x1b[2J\u202e\n]"
    machine = Machine(source="live", missing={odd: "no", "gpus[0].name": odd})
    text = document_text(inspection_document(Inspection(machine=machine), "all"), 80)
    assert "[2J" in text
    assert all(character.isprintable() for character in text.replace("\n", ""))


def fabric_of(*gpus: int | str, why: str) -> dict[str, str]:
    return {f"gpus[{gpu}].fabric.{name}": why for gpu in gpus for name in ("state", "status", "health")}


def test_a_gpu_without_nvswitches_lacks_no_fabric() -> None:
    why = "N/A"
    gpus = Gpu(index=0), Gpu(index=1, nvlinks=(NvLink(link=0, remote_kind="gpu"),))
    missing = fabric_of(0, 1, why=why) | {"gpus[0].fan_percent": why}
    assert [words.rpartition(": ")[2] for words in not_read(missing, *gpus).values()] == ["fan"]
    text = {"gpus[0].fabric.state": why, "gpus[1].fabric.state": why, "gpus[*].fabric.health": "not reported"}
    assert not_read(text, *gpus) == {}
