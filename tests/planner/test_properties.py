"""The choice of GPUs against all sets of them."""

import random
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.planner import Request, plan
from gputopo.values.errors import NoPlanError
from gputopo.values.machine import Gpu, GpuProcess, Machine
from tests import there
from tests.matrices import changed, link_of

WORDS = ["NV2", "NV1", "PIX", "PXB", "PHB", "NODE", "SYS", "?"]  # nearest first


@st.composite
def machines(draw: st.DrawFn) -> tuple[dict[tuple[int, int], int], Machine]:
    """A machine of up to eight GPUs, and each pair's place in WORDS."""
    count = draw(st.integers(1, 8))
    few = draw(st.lists(st.sampled_from(range(len(WORDS))), min_size=1, max_size=3))
    places = {pair: draw(st.sampled_from(few)) for pair in combinations(range(count), 2)}
    links = (link_of(a, b, WORDS[place]) for (a, b), place in places.items())
    return places, Machine(
        source="a test",
        gpus=tuple(Gpu(index=index) for index in range(count)),
        links=tuple(link for link in links if link is not None),
    )


def cost(gpus: tuple[int, ...], places: dict[tuple[int, int], int]) -> tuple[int, ...]:
    return tuple(sorted((places[pair] for pair in combinations(sorted(gpus), 2)), reverse=True))


@given(machines(), st.data())
def test_the_choice_is_that_of_brute_force_and_candidates_stand_for_all_sets(
    drawn: tuple[dict[tuple[int, int], int], Machine], data: st.DataObject
) -> None:
    """Fewest GPUs in use first, then the nearest; with the GPU that holds the variables."""
    places, machine = drawn
    gpus = range(len(machine.gpus))
    size = data.draw(st.integers(1, len(gpus)))
    required = data.draw(st.sampled_from([None, *gpus]))
    busy = data.draw(st.sets(st.sampled_from(gpus), max_size=2))
    for gpu in busy:
        machine = changed(machine, gpu, processes=(GpuProcess(pid=1, name="python", kind="compute"),))
    request = Request(
        num_gpus=size,
        ps="auto" if required is None else f"gpu:{required}",
        prefer_pix=not busy and data.draw(st.booleans()),
    )

    def order(gpus: tuple[int, ...]) -> tuple[object, ...]:
        return len({*gpus} & busy - {required}), cost(gpus, places), gpus

    sets = [each for each in combinations(gpus, size) if required is None or required in each]
    found = plan(machine, request, keep=len(sets))
    shown = [candidate.gpus for candidate in found.candidates]
    assert found.choice.gpus == min(sets, key=order)
    assert shown == sorted(shown, key=order)
    assert plan(machine, request, keep=2).candidates == found.candidates[:2]
    if not request.prefer_pix:
        assert sum(candidate.alike for candidate in found.candidates) == len(sets)


def test_more_sets_than_can_be_compared_are_refused_and_alike_ones_are_not() -> None:
    pairs = list(combinations(range(32), 2))
    gpus = tuple(Gpu(index=index) for index in range(32))
    words = random.Random(0)
    near = tuple(there(link_of(a, b, words.choice(WORDS[:7]))) for a, b in pairs)
    with pytest.raises(NoPlanError, match="more than 20000 sets of 16 GPUs differ") as refused:
        plan(Machine(source="a test", gpus=gpus, links=near), Request(num_gpus=16))
    assert "--gpus or --exclude" in refused.value.hint
    alike = tuple(there(link_of(a, b, "PHB")) for a, b in pairs)
    found = plan(Machine(source="a test", gpus=gpus, links=alike), Request(num_gpus=16))
    assert found.choice.gpus == tuple(range(16))


@given(machines(), st.data())
def test_prefer_pix_gives_an_island_wherever_one_is_large_enough(
    drawn: tuple[dict[tuple[int, int], int], Machine], data: st.DataObject
) -> None:
    places, machine = drawn
    pix = WORDS.index("PIX")
    size = data.draw(st.integers(2, len(machine.gpus))) if len(machine.gpus) > 1 else 1
    found = plan(machine, Request(num_gpus=size, prefer_pix=True))

    def one_island(gpus: tuple[int, ...]) -> bool:
        return all(place <= pix for place in cost(gpus, places))

    possible = any(map(one_island, combinations(range(len(machine.gpus)), size)))
    assert one_island(found.choice.gpus) is possible
    met = not any("--prefer-pix cannot" in why or "no GPUs" in why for why in found.choice.reasons)
    assert met is possible
    assert (found.refused == ()) is possible


@given(machines())
def test_prefer_pix_without_a_number_takes_the_largest_island_there_is(
    drawn: tuple[dict[tuple[int, int], int], Machine],
) -> None:
    places, machine = drawn
    count = len(machine.gpus)
    largest = max(
        size
        for size in range(1, count + 1)
        for gpus in combinations(range(count), size)
        if all(WORDS[place] in ("NV2", "NV1", "PIX") for place in cost(gpus, places))
    )
    assert len(plan(machine, Request(prefer_pix=True)).choice.gpus) == (largest if largest > 1 else count)
