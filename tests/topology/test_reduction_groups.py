from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from gputopo.topology import is_within, reduction_groups
from gputopo.values.machine import Hop
from tests.matrices import DGX1_P100, DGX1_V100, SEVEN, machine_of

ROW = """
X   PHB PHB
PHB X   PHB
PHB PHB X
"""
PAIRS = """
X   SYS PIX SYS
SYS X   SYS PIX
PIX SYS X   SYS
SYS PIX SYS X
"""


def test_groups_are_the_nearest_islands_of_the_machine() -> None:
    cases: list[tuple[str, tuple[int, ...], tuple[tuple[int, ...], ...]]] = [
        (SEVEN, (0, 1, 2, 3, 4, 5, 6), ((0, 1, 2), (3, 4, 5, 6))),
        (SEVEN, (6, 0, 5), ((0, 2), (1,))),  # towers, not GPUs
        (SEVEN, (0, 3), ((0, 1),)),
        (PAIRS, (0, 1, 2, 3), ((0, 2), (1, 3))),
        (ROW, (0, 1, 2), ((0, 1, 2),)),
        (ROW, (2,), ((0,),)),
        (ROW, (), ()),
        (DGX1_P100, (0, 1, 2, 3, 4, 5, 6, 7), ((0, 1, 2, 3), (4, 5, 6, 7))),
        # Leaders of one rank talk to one another: 0 and 4, 1 and 5, ... have NVLinks across the boards.
        (DGX1_V100, (0, 1, 2, 3, 7, 6, 5, 4), ((0, 1, 2, 3), (7, 6, 5, 4))),
    ]
    for matrix, gpus, groups in cases:
        assert reduction_groups(machine_of(matrix), gpus) == groups


def test_a_gpu_that_the_machine_does_not_know_is_a_group_by_itself() -> None:
    assert reduction_groups(machine_of(SEVEN), (0, 99, 1)) == ((0, 2), (1,))
    assert reduction_groups(machine_of(SEVEN), (98, 99)) == ((0, 1),)


@given(
    st.sampled_from([SEVEN, DGX1_P100, DGX1_V100]).flatmap(
        lambda matrix: st.tuples(st.just(matrix), st.permutations(range(7)), st.integers(0, 7))
    )
)
def test_every_tower_is_in_one_group_of_close_ones(drawn: tuple[str, list[int], int]) -> None:
    matrix, order, count = drawn
    machine, gpus = machine_of(matrix), order[:count]
    groups = reduction_groups(machine, gpus)
    assert sorted(tower for group in groups for tower in group) == list(range(count))
    if len(groups) > 1:
        farthest = next(
            hop for hop in Hop if any(is_within(machine.link(a, b), hop) for a, b in combinations(gpus, 2))
        )
        for group in groups:
            assert all(is_within(machine.link(gpus[a], gpus[b]), farthest) for a, b in combinations(group, 2))
