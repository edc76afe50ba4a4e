from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from gputopo.planner import Request, plan
from gputopo.values.machine import Gpu, Machine
from tests.matrices import link_of

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
def test_the_choice_is_that_of_brute_force(
    drawn: tuple[dict[tuple[int, int], int], Machine], data: st.DataObject
) -> None:
    places, machine = drawn
    size = data.draw(st.integers(1, len(machine.gpus)))
    prefer_pix = data.draw(st.booleans())
    found = plan(machine, Request(num_gpus=size, prefer_pix=prefer_pix))
    sets = list(combinations(range(len(machine.gpus)), size))
    assert found.choice.gpus == min(sets, key=lambda gpus: (cost(gpus, places), gpus))
    costs = [cost(candidate.gpus, places) for candidate in found.candidates]
    assert costs == sorted(costs)
    assert plan(machine, Request(num_gpus=size, prefer_pix=prefer_pix)) == found


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
