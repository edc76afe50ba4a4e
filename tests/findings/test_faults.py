"""Simulated boxes with exactly one fault, or two: these are found, and nothing else."""

import re
from random import Random

import pytest

from tests.findings.boxes import every_gpu, find, gpu, sound
from tests.findings.faults import FAULTS, IDLE, OF_A_GPU


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_sound_box_under_load_or_idle_has_no_findings(count: int) -> None:
    assert find(sound(count)) == ()
    assert find(every_gpu(**IDLE)(sound(count))) == ()


def unfilled(remedy: str, gpu: int) -> bool:
    """Return whether a remedy lacks something, or the number of the GPU or a value of it."""
    words = set(re.split(r"[ ,;.()]", remedy))
    commands = set(re.findall(r"-i ([0-9A-Z][^ ,;).]*)", remedy))
    return bool(
        not remedy
        or words & {"WATTS", "DEFAULT_WATTS", "MAX_WATTS", "ECC_NOW", "NODE"}
        or commands - {str(gpu)}
    )


def test_each_fault_is_found_once_on_its_gpu_and_no_other_gpu_is_accused() -> None:
    """Four GPUs and one fault, of the machine or of a GPU at random."""
    wrong: list[str] = []
    for name, (change, ids) in FAULTS.items():
        sick = Random(name).randrange(4)
        change = OF_A_GPU[name][0](sick) if name in OF_A_GPU else change
        found = find(change(sound()))
        accused = {gpu for one in found for gpu in one.subject.gpus}
        missed, others = ids - {one.id for one in found}, [one.id for one in found if one.id not in ids]
        right = accused == {sick} if name in OF_A_GPU else True
        right = right and all(one.says and "\n" not in one.says for one in found)
        right = right and not any(unfilled(one.remedy or "", sick) for one in found if name in OF_A_GPU)
        if missed or others or len(found) > len(ids) or not right:
            wrong.append(f"{name} on GPU {sick}: missed {missed}, also {others}, accused {accused}")
    assert wrong == [], "\n".join(wrong)


def test_two_faults_of_different_cards_give_both_findings() -> None:
    # The first are of GPU 1; the others of the machine or of other GPUs.
    others = ("x1 riser", "hot", "ECC", "busy")
    rest = ("ACS on", "NVLinks down", "mixed memory", "lost GPU")
    for first in others:
        for second in rest:
            change, expected = FAULTS[first]
            more, also = FAULTS[second]
            if second in OF_A_GPU:
                more = OF_A_GPU[second][0](2)
            found = {finding.id for finding in find(more(change(sound())))}
            assert found == expected | also, (first, second)


def test_many_cards_in_few_words_are_reported_in_groups() -> None:
    machine = sound()
    for index, lanes in enumerate((8, 8, 4, 8)):
        machine = gpu(index, pcie={"width_now": lanes})(machine)
    (found,) = find(machine)
    assert found.says == "GPUs 0-1,3: PCIe link on 8 of 16 lanes; GPU 2: PCIe link on 4 of 16 lanes"
