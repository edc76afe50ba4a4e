"""Simulated boxes with exactly one fault, or two: these are found, and nothing else."""

from itertools import combinations
from random import Random

import pytest

from gputopo.captures import read_text
from gputopo.values.schema import encode
from tests.findings.boxes import every_gpu, find, gpu, sound
from tests.findings.faults import FAULTS, IDLE, OF_A_GPU


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_sound_box_under_load_or_idle_has_no_findings(count: int) -> None:
    assert find(sound(count)) == ()
    assert find(every_gpu(**IDLE)(sound(count))) == ()


def test_each_fault_is_found_once_on_its_gpu_and_no_other_gpu_is_accused() -> None:
    """Eight GPUs and one fault, of the machine or of a GPU at random, through the reader of recordings."""
    wrong: list[str] = []
    for name, (change, ids) in FAULTS.items():
        sick = Random(name).randrange(8)
        change = OF_A_GPU[name][0](sick) if name in OF_A_GPU else change
        recording = encode(change(sound(8))).decode()
        found = find(read_text(recording, origin="faulty.json"))
        accused = {gpu for one in found for gpu in one.subject.gpus}
        missed, others = ids - {one.id for one in found}, [one.id for one in found if one.id not in ids]
        right = accused == {sick} if name in OF_A_GPU else True
        right = right and all(one.says and one.remedy and "\n" not in one.says for one in found)
        if missed or others or len(found) > len(ids) or not right:
            wrong.append(f"{name} on GPU {sick}: missed {missed}, also {others}, accused {accused}")
    assert wrong == [], "\n".join(wrong)


def test_two_faults_of_different_cards_give_both_findings() -> None:
    # The first are of GPU 1; the others of the machine or of other GPUs.
    others = ("x1 riser", "hot", "ECC", "busy", "persistence", "thermal slowdown of the card", "replays")
    rest = ("ACS on", "NVLinks down", "CUDA order", "driver of two versions", "mixed memory", "lost GPU")
    for first in others:
        for second in rest:
            change, expected = FAULTS[first]
            more, also = FAULTS[second]
            if second in OF_A_GPU:
                more = OF_A_GPU[second][0](2)
            found = {finding.id for finding in find(more(change(sound())))}
            assert found == expected | also, (first, second)


def test_two_faults_of_one_card_give_both_findings() -> None:
    several = ("x1 riser", "ECC", "busy", "persistence", "exclusive", "hot memory", "replays")
    for first, second in combinations(several, 2):
        machine = FAULTS[second][0](FAULTS[first][0](sound()))
        assert {finding.id for finding in find(machine)} == FAULTS[first][1] | FAULTS[second][1]


def test_a_fault_of_one_gpu_names_it_and_a_fault_of_all_is_reported_once() -> None:
    (one,) = find(FAULTS["persistence"][0](sound()))
    assert one.subject.text == "gpu:1"
    assert "GPU 1" in one.says
    (all_,) = find(every_gpu(persistence_mode=False)(sound()))
    assert all_.subject.text == "gpus:0-3"
    assert set(all_.evidence["gpus"]) == {"0", "1", "2", "3"}


def test_the_same_fault_with_other_numbers_on_two_of_four_is_two_findings() -> None:
    machine = gpu(0, pcie={"width_now": 1})(gpu(3, pcie={"width_now": 4})(sound()))
    assert {finding.subject.text for finding in find(machine)} == {"gpu:0", "gpu:3"}


def test_many_cards_in_few_words_are_reported_in_groups() -> None:
    machine = sound()
    for index, lanes in enumerate((8, 8, 4, 8)):
        machine = gpu(index, pcie={"width_now": lanes})(machine)
    (found,) = find(machine)
    assert found.says == "GPUs 0-1,3: PCIe link on 8 of 16 lanes; GPU 2: PCIe link on 4 of 16 lanes"
