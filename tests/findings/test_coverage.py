"""What a machine was checked for is counted, and the parts that were not read are known."""

import pytest
from msgspec.structs import replace

from gputopo.findings import checks_made
from gputopo.report import document_text, inspection_document
from gputopo.values.finding import Inspection
from gputopo.values.machine import Gpu, Machine
from tests.findings.boxes import every_gpu, sound

NOTHING = Gpu(index=0)


def without(part: str, *more: str, index: int | None = None) -> Machine:
    """The sound machine without parts of all its GPUs, or of one."""
    changes = {name: getattr(NOTHING, name) for name in (part, *more)}
    gpus = (replace(one, **changes) if index in (None, one.index) else one for one in sound().gpus)
    return replace(sound(), gpus=tuple(gpus))


def test_the_checks_of_a_machine_of_which_nothing_is_known_are_not_counted() -> None:
    assert checks_made(Machine(source="x")) == 0
    assert checks_made(Machine(source="x", gpus=(NOTHING, Gpu(index=1)))) == 0


@pytest.mark.parametrize(
    ("lost", "checks"),
    [
        (("temperature_c",), 1),  # temperatures; lost GPUs and peers have other facts
        (("fan_percent", "violation_ns"), 0),  # the sound machine has none
        (("ecc", "remapped_rows", "retired_pages"), 2),
        (("utilization_percent", "memory_mib"), 3),  # use, clocks under load, and power of peers
    ],
)
def test_without_its_facts_a_check_is_not_counted(lost: tuple[str, ...], checks: int) -> None:
    assert checks_made(sound()) - checks_made(without(*lost)) == checks


def test_checks_of_load_need_a_gpu_under_load_and_checks_of_peers_need_peers() -> None:
    idle = every_gpu(pstate="P8", utilization_percent={"gpu": 0})(sound())
    assert checks_made(sound()) - checks_made(idle) == 3
    assert checks_made(sound(4)) - checks_made(sound(2)) == 1
    assert checks_made(sound(2)) > checks_made(sound(1))


MISSING_ECC = replace(without("ecc", "remapped_rows"))


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (sound(), ""),
        (without("power_w", "clocks_mhz"), "; clocks and power are not in this capture"),
        (without("pcie"), "; PCIe links are not in this capture"),
        (replace(sound(), links=()), "; topology is not in this capture"),
        # What a card does not have was not left out.
        (replace(MISSING_ECC, missing={f"gpus[{n}].ecc.mode": "N/A" for n in range(4)}), ""),
        (
            replace(MISSING_ECC, missing={f"gpus[{n}].ecc.mode": "NO_PERMISSION" for n in range(4)}),
            "; ECC is not in this capture",
        ),
        (
            replace(MISSING_ECC, missing={"gpus[1].ecc.mode": "N/A"}),
            "; ECC of GPUs 0,2-3 is not in this capture",
        ),
    ],
)
def test_the_parts_of_which_nothing_was_read_are_in_the_first_line(machine: Machine, words: str) -> None:
    text = document_text(inspection_document(Inspection(machine=machine, findings=()), checks=3), 200)
    assert text.partition("no fault in 3 checks")[2].partition(".")[0] == words
