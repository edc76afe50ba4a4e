"""The fastest candidates against all of them."""

from itertools import combinations
from math import comb

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gputopo.prediction.gradients import GradientBlock
from gputopo.prediction.links.paths import HostLink, PairPath, PathKind, Paths
from gputopo.prediction.links.shared_links import Uplink
from gputopo.prediction.programs import DEFAULT, ProgramConstants, require_program
from gputopo.prediction.search import (
    DIGITS,
    MAX_SETS,
    SearchQuestion,
    fastest,
)
from gputopo.prediction.step import ModelCosts, Placement, StepPredictor, model_of, predict
from gputopo.values.errors import NoPlanError
from gputopo.workload.workloads import require
from tests.prediction.invented import machines, models, placings, programs

VGG16 = model_of(require("vgg16"))


def _question(
    paths: Paths,
    model: ModelCosts,
    program: ProgramConstants,
    compute: dict[int, float],
    size: int,
    last: set[int],
) -> SearchQuestion:
    places = placings(sorted(paths.hosts))
    return SearchQuestion(paths, model, program, compute, places, size, lambda a, b: (b - a) % 3, last=last)


def _every_step(question: SearchQuestion, stepper: StepPredictor, pool: list[int]) -> list[float]:
    """Return the seconds of a step of every candidate, the shortest first."""
    return sorted(
        predict(stepper, question.paths, gpus, max(question.compute_s[gpu] for gpu in gpus), placing).step_s
        for gpus in combinations(pool, question.size)
        for placing in question.placings
        if placing.owner is None or placing.owner in gpus
    )


@given(machines(), models(), programs(), st.data())
@settings(max_examples=30)
def test_the_search_finds_what_looking_at_every_candidate_finds(
    paths: Paths, model: ModelCosts, program: ProgramConstants, data: st.DataObject
) -> None:
    """The best ones in order, by seconds; GPUs to avoid come last whatever they would bring."""
    pool = sorted(paths.hosts)
    size = data.draw(st.integers(1, len(pool)))
    speeds = st.sampled_from((0.05, 0.1, 0.2))
    compute = {gpu: data.draw(speeds) for gpu in pool}
    last = data.draw(st.sets(st.sampled_from(pool), max_size=2))
    question = _question(paths, model, program, compute, size, last)
    stepper = StepPredictor(model, program, size, paths.cpus)

    everything = sorted(
        (len(last & set(gpus)), predict(stepper, paths, gpus, max(map(compute.get, gpus)), placing).step_s)  # type: ignore[type-var, arg-type]
        for gpus in combinations(pool, size)
        for placing in question.placings
        if placing.owner is None or placing.owner in gpus
    )
    found = fastest(question, pool, 10_000)

    assert sum(one.alike for one in found) == len(everything)
    each = [one for one in found for _ in range(one.alike)]
    assert [len(last & set(one.gpus)) for one in each] == [count for count, _ in everything]
    assert [one.prediction.step_s for one in each] == pytest.approx(
        [seconds for _, seconds in everything], rel=1e-6, abs=1e-9
    )
    assert fastest(question, pool, 1) == found[:1]
    order = [
        (
            len(last & set(one.gpus)),
            round(one.prediction.step_s, DIGITS),
            sorted((question.nearness(a, b) for a, b in combinations(one.gpus, 2)), reverse=True),
            one.gpus,
        )
        for one in found
    ]
    assert order == sorted(order)


@st.composite
def measured(draw: st.DrawFn) -> Paths:
    """Return the paths of four to six GPUs below two switches, all measured and no two of them alike."""
    count = draw(st.integers(4, 6))
    noise = iter(draw(st.lists(st.floats(0.9, 1.1), min_size=40, max_size=40)))
    hosts = {gpu: HostLink(12.0 * next(noise), 12.0 * next(noise), "measured") for gpu in range(count)}
    kinds: tuple[PathKind, ...] = ("direct", "staged")
    kind = draw(st.sampled_from(kinds))
    pairs = {
        (a, b): PairPath(kind, (12.0 if a // 2 == b // 2 else 9.0) * next(noise), "measured")
        for a, b in combinations(range(count), 2)
    }
    ends = range(0, count - 1, 2)
    uplinks = tuple(Uplink(frozenset((gpu, gpu + 1)), 12.0 * next(noise), 12.0 * next(noise)) for gpu in ends)
    return Paths(hosts, pairs, uplinks)


@given(measured(), models(), programs(), st.data())
@settings(max_examples=15)
def test_the_search_is_exact_where_all_gpus_differ(
    paths: Paths, model: ModelCosts, program: ProgramConstants, data: st.DataObject
) -> None:
    """The few best, by bounds, are the first of all."""
    pool = sorted(paths.hosts)
    size = data.draw(st.integers(2, len(pool)))
    compute = {gpu: data.draw(st.floats(0.01, 0.012)) for gpu in pool}
    question = _question(paths, model, program, compute, size, set())
    stepper = StepPredictor(model, program, size, paths.cpus)

    everything = _every_step(question, stepper, pool)
    for keep in (1, 5, 10_000):
        each = [one for one in fastest(question, pool, keep) for _ in range(one.alike)]
        assert [one.prediction.step_s for one in each] == pytest.approx(everything[: len(each)], abs=2e-9)
        assert len(each) >= min(keep, len(everything))


@given(machines(), models(), programs())
def test_no_step_is_shorter_than_the_bytes_need_on_the_narrowest_link(
    paths: Paths, model: ModelCosts, program: ProgramConstants
) -> None:
    """Gradients leave over the link of their tower at its full rate at best, after its own arithmetic."""
    gpus = tuple(sorted(paths.hosts))
    sure = msgspec.structs.replace(program, overlap=0.0)
    narrowest = min(host.up for host in paths.hosts.values()) * 1e9
    found = predict(
        StepPredictor(model, sure, len(gpus)), paths, gpus, 0.1, Placement("parameter_server", "cpu")
    )

    assert found.step_s >= 0.1 + model.bytes / narrowest - 1e-9


@given(machines(), models(), programs(), st.floats(1.0, 4.0), st.data())
def test_one_faster_link_never_makes_a_step_slower(
    paths: Paths, model: ModelCosts, program: ProgramConstants, factor: float, data: st.DataObject
) -> None:
    """In one direction of one GPU or of one uplink, or of one pair."""
    gpus = tuple(sorted(paths.hosts))
    stepper = StepPredictor(model, program, len(gpus), paths.cpus)
    gpu, pair = data.draw(st.sampled_from(gpus)), data.draw(st.sampled_from(sorted(paths.pairs)))
    host, path = paths.hosts[gpu], paths.pairs[pair]
    faster = [
        msgspec.structs.replace(paths, hosts={**paths.hosts, gpu: host._replace(up=factor * host.up)}),
        msgspec.structs.replace(
            paths, pairs={**paths.pairs, pair: path._replace(gb_per_s=factor * path.gb_per_s)}
        ),
        msgspec.structs.replace(
            paths, uplinks=tuple(one._replace(down=factor * one.down) for one in paths.uplinks[:1])
        ),
    ]
    faster[-1] = msgspec.structs.replace(faster[-1], uplinks=(*faster[-1].uplinks, *paths.uplinks[1:]))
    for placing in placings(gpus):
        before = predict(stepper, paths, gpus, 0.1, placing).step_s
        for one in faster:
            assert predict(stepper, one, gpus, 0.1, placing).step_s <= before * (1 + 1e-9)


def _two(host: float, both: float = 0.9) -> Paths:
    """Return two GPUs whose copies between one another reach 9.8 GB/s."""
    link = HostLink(host, host, "measured", both)
    return Paths({0: link, 1: link}, {(0, 1): PairPath("direct", 9.8, "measured", 0.8)}, ())


@given(st.one_of(st.just(VGG16), models()), st.floats(9.3, 10.8), st.floats(9.3, 10.8), st.floats(0.5, 1.0))
@example(VGG16, 10.0, 10.4, 0.9)
def test_links_that_become_faster_than_the_pair_behind_them_never_make_a_step_slower(
    model: ModelCosts, one: float, other: float, both: float
) -> None:
    """What lies between counts at its own rate, whether or not its ends are faster."""
    stepper = StepPredictor(model, require_program(DEFAULT), 2)
    for placing in placings((0, 1)):
        slower, faster = (
            predict(stepper, _two(host, both), (0, 1), 0.1, placing).step_s for host in sorted((one, other))
        )
        assert faster <= slower * (1 + 1e-9)


@given(machines(), models(), programs(), st.data())
@settings(max_examples=15)
def test_reductions_in_the_order_of_towers_are_found_as_by_looking_at_every_candidate(
    paths: Paths, model: ModelCosts, program: ProgramConstants, data: st.DataObject
) -> None:
    """On the first GPU, in a ring or in groups, alone and beside the best ring."""
    pool = sorted(paths.hosts)
    size = data.draw(st.integers(1, len(pool)))
    compute = {gpu: data.draw(st.sampled_from((0.05, 0.1))) for gpu in pool}
    names = st.sampled_from(("ring", "collective", "one_device", "hierarchical", "tf_hierarchical", "nccl"))
    drawn = data.draw(st.lists(names, min_size=1, max_size=3, unique=True))
    places = tuple(Placement("replicated", None, name) for name in drawn)
    question = SearchQuestion(paths, model, program, compute, places, size, lambda a, b: 0)
    stepper = StepPredictor(model, program, size, paths.cpus)

    everything = _every_step(question, stepper, pool)
    listed = fastest(question, pool, 10_000)
    for found in (fastest(question, pool, 1), fastest(question, pool, 3), listed):
        each = [one.prediction.step_s for one in found for _ in range(one.alike)]
        assert each == pytest.approx(everything[: len(each)], rel=1e-6, abs=2e-9)
    assert sum(one.alike for one in listed) == len(everything)


OTHERS = (Placement("replicated", None, "ring"), Placement("replicated", None, "psgpu"))


def _different(count: int, size: int) -> tuple[SearchQuestion, range]:
    """Return a question of GPUs of which each has another speed."""
    gpus = range(count)
    paths = Paths(
        {gpu: HostLink(12.0, 12.0, "measured") for gpu in gpus},
        {pair: PairPath("direct", 10.0, "measured") for pair in combinations(gpus, 2)},
        (),
    )
    compute = {gpu: 0.1 + 0.01 * gpu for gpu in gpus}
    model, program = ModelCosts((GradientBlock(10**8, 1.0),), (10**8,)), require_program(DEFAULT)
    return SearchQuestion(paths, model, program, compute, OTHERS[:1], size, lambda a, b: 0), gpus


def test_more_sets_than_can_be_listed_are_refused() -> None:
    """All sets of sixteen GPUs can be, and of more where many are alike."""
    assert max(comb(16, size) for size in range(17)) <= MAX_SETS
    with pytest.raises(NoPlanError, match="too many to compare"):
        fastest(*_different(18, 9), 1)
    question, gpus = _different(18, 9)
    alike = question._replace(compute_s=dict.fromkeys(gpus, 0.1))
    assert [one.alike for one in fastest(alike, gpus, 99)] == [comb(18, 9)]
