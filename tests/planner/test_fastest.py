"""Choices by predicted seconds: what they are the best of, what options cost, how sure they are."""

import math
from itertools import combinations
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.planner import Request, plan
from gputopo.planner.candidates import UNREAD_LINKS, record_reason
from gputopo.planner.choose import basis_of
from gputopo.planner.fastest import TIE, Basis, Fastest
from gputopo.planner.selection import ALL
from gputopo.prediction.one_gpu_speeds import Figure
from gputopo.prediction.search import FoundCandidate
from gputopo.prediction.step import Placement, StepSeconds
from gputopo.values.errors import UsageError
from gputopo.values.gpu import GpuProcess
from gputopo.values.machine import Gpu, Machine
from gputopo.values.run.all_reduce import NAMES
from gputopo.values.run.plan import SPREAD, SURE_MARGIN, Candidate, Learned, Plan, mode_words, runners_up
from tests import there
from tests.matrices import DGX1_V100, FOUR_AND_FOUR, SEVEN, changed, link_of, machine_of

WORDS = ["NV2", "NV1", "PIX", "PHB", "SYS"]


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Return machines of two to five GPUs with links of few kinds."""
    count = draw(st.integers(2, 5))
    few = draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=3))
    links = (link_of(a, b, draw(st.sampled_from(few))) for a, b in combinations(range(count), 2))
    return Machine(
        source="a test",
        gpus=tuple(Gpu(index=index) for index in range(count)),
        links=tuple(link for link in links if link is not None),
    )


def request(**fields: Any) -> Request:
    """Return a request for which a step is predicted."""
    return Request(**{"model": "alexnet", "single_gpu_images_per_sec": (1000.0,), **fields})


def speed(found: Plan) -> float:
    return there(found.choice.images_per_sec)


def why(found: Plan) -> str:
    return "\n".join(found.choice.reasons)


OPTIONS = st.sampled_from(
    (
        {},
        {"ps": "cpu"},
        {"ps": "gpu:spread"},
        {"ps": "gpu:1"},
        {"variable_update": "replicated"},
        {"variable_update": "parameter_server"},
        {"variable_update": "independent"},
        {"all_reduce": "ring"},
    )
)


@given(machines(), OPTIONS, st.data())
def test_no_set_that_is_named_is_faster_than_the_choice(
    machine: Machine, options: dict[str, Any], data: st.DataObject
) -> None:
    """The choice is one of these sets, too; each of them has its own speeds of single GPUs."""
    count = len(machine.gpus)
    size = data.draw(st.integers(1, count))
    speeds = tuple(data.draw(st.sampled_from((500.0, 1000.0))) for _ in range(count))
    found = plan(machine, request(num_gpus=size, single_gpu_images_per_sec=speeds, **options))

    named = [
        plan(machine, request(gpus=gpus, single_gpu_images_per_sec=tuple(speeds[g] for g in gpus), **options))
        for gpus in combinations(range(count), size)
        if options.get("ps") != "gpu:1" or 1 in gpus
    ]
    assert speed(found) >= (1 - TIE) * max(map(speed, named))
    assert found.choice.gpus in [one.choice.gpus for one in named]
    listed = [one.images_per_sec or 0.0 for one in found.candidates]
    assert listed[1:] == sorted(listed[1:], reverse=True)
    assert plan(machine, found_request := request(num_gpus=size, **options)) == plan(machine, found_request)


@given(machines(), st.sampled_from(("alexnet", "resnet50")))
def test_all_candidates_of_named_gpus_are_every_placement_and_reduction(machine: Machine, model: str) -> None:
    """Each with its parts, which add up to the step; another training comes last."""
    gpus = tuple(gpu.index for gpu in machine.gpus)
    found = plan(machine, request(gpus=gpus, model=model), keep=ALL)
    served = [f"gpu:{gpu}" for gpu in gpus] + ["gpu:spread", "cpu"]
    reductions = [name for name in NAMES if name != "tf_hierarchical" or len(gpus) % 2 == 0]
    assert sorted(str((one.variable_update, one.ps_device, one.all_reduce)) for one in found.candidates) == (
        sorted(
            [
                *(str(("parameter_server", place, None)) for place in served),
                *(str(("replicated", None, name)) for name in reductions),
                str(("independent", None, None)),
            ]
        )
    )
    assert found.candidates[0] == found.choice
    for one in found.candidates:
        assert one.gpus == gpus
        assert one.step_ms == pytest.approx((one.compute_ms or 0) + sum(one.exposed_ms.values()), abs=1e-3)
        assert one.images_per_sec is not None
        assert one.images_per_sec_high is not None
        assert there(one.images_per_sec_low) <= one.images_per_sec <= one.images_per_sec_high
        assert one.limited_by
    independent = next(one for one in found.candidates if one.variable_update == "independent")
    assert independent.images_per_sec == pytest.approx(1000 * len(gpus))


@pytest.mark.parametrize(
    ("order", "batch"), [((0, 1, 5, 4), None), ((4, 0, 1, 5), (32, 32, 32, 40)), ((5, 2, 0, 4), 32)]
)
def test_every_candidate_of_named_gpus_is_predicted_in_their_order(
    order: tuple[int, ...], batch: int | tuple[int, ...] | None
) -> None:
    """As where its reduction was asked for; also among all candidates, and with batches of their own."""
    asked = request(gpus=order, batch_size=batch)
    every = {one.all_reduce: one.step_ms for one in plan(machine_of(DGX1_V100), asked, keep=ALL).candidates}
    for name in ("ring", "collective", "hierarchical", "one_device"):
        alone = plan(machine_of(DGX1_V100), msgspec.structs.replace(asked, all_reduce=name))
        assert alone.choice.step_ms == every[name]


def test_the_slow_gpu_of_unequal_ones_is_left_out() -> None:
    found = plan(machine_of(SEVEN), request(num_gpus=6, single_gpu_images_per_sec=(9, 9, 2, 9, 9, 9, 9)))
    assert found.choice.gpus == (0, 1, 3, 4, 5, 6)
    slow = plan(machine_of(SEVEN), request(gpus=(0, 2), single_gpu_images_per_sec=(9, 2)))
    assert slow.choice.limited_by == "compute of GPU 2"


def test_gpus_in_use_are_chosen_last_however_fast_they_are() -> None:
    machine = changed(machine_of(SEVEN), 0, processes=(GpuProcess(pid=7, name="python", kind="compute"),))
    found = plan(machine, request(num_gpus=2, single_gpu_images_per_sec=(9, 9, 1, 1, 1, 1, 1)))
    assert 0 not in found.choice.gpus
    assert "idle GPUs 1 and 2 chosen, 2 instead of 18 images/sec" in found.warnings[0]


def test_prefer_pix_stays_within_one_switch_and_has_its_price() -> None:
    machine = machine_of(SEVEN)
    speeds = (9.0, 4.0, 4.0, 9.0, 4.0, 4.0, 4.0)  # the two fast ones are behind different switches
    free = plan(machine, request(num_gpus=2, single_gpu_images_per_sec=speeds))
    kept = plan(machine, request(num_gpus=2, single_gpu_images_per_sec=speeds, prefer_pix=True))
    assert free.choice.gpus == (0, 3)
    assert len({gpu < 3 for gpu in kept.choice.gpus}) == 1
    (price,) = there(kept.prediction).prices
    assert (price.option, price.instead) == ("--prefer-pix", (0, 3))
    assert price.share == pytest.approx(1 - speed(kept) / speed(free), abs=1e-3)
    assert there(free.prediction).prices == ()
    nearly = request(
        num_gpus=2, single_gpu_images_per_sec=(9.0, 8.99, 4.0, 9.0, 4.0, 4.0, 4.0), prefer_pix=True
    )
    (price,) = there(plan(machine, nearly).prediction).prices
    assert price.share == 0.0, "no difference that can be told"


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"ps": "cpu"}, "--ps cpu"),
        ({"all_reduce": "pscpu"}, "--all-reduce pscpu"),
        ({"variable_update": "parameter_server"}, "--variable-update parameter_server"),
        ({"gpus": (0, 5), "num_gpus": None}, "--gpus"),
    ],
)
def test_each_option_that_leaves_fewer_candidates_has_its_price(options: dict[str, Any], option: str) -> None:
    machine = machine_of(DGX1_V100)
    found = plan(machine, request(**{"num_gpus": 2, **options}))
    best = plan(machine, request(num_gpus=2))
    (price,) = there(found.prediction).prices
    assert price.option == option
    assert price.mode == mode_words(best.choice)
    assert price.images_per_sec == pytest.approx(speed(best))
    assert price.share == pytest.approx(max(0, 1 - speed(found) / speed(best)), abs=0.005)


@given(machines(), st.sampled_from(("alexnet", "resnet50", "trivial")))
def test_a_tie_is_a_small_margin_and_names_what_settles_it(machine: Machine, model: str) -> None:
    found = plan(machine, request(num_gpus=2, model=model))
    assert found.prediction is not None
    margin = found.prediction.margin
    assert (found.prediction.tie is not None) == (margin is not None and margin < SURE_MARGIN)
    if found.prediction.tie is not None:
        assert "a short run of each" in found.prediction.tie
    if margin is not None:
        assert margin == pytest.approx(1 - (found.runners_up[0].images_per_sec or 0) / speed(found))


def test_without_a_speed_one_is_assumed_and_the_nearest_gpus_are_chosen() -> None:
    found = plan(machine_of(FOUR_AND_FOUR), Request(num_gpus=2, model="alexnet"))
    assert found.choice.gpus == (0, 1)
    assert found.prediction is not None
    assert found.prediction.single_gpu_source.startswith("assumed: the median of the 1")
    assert "--single-gpu-images-per-sec" in found.prediction.single_gpu_source
    low, high = found.choice.images_per_sec_low or 0.0, found.choice.images_per_sec_high or 0.0
    assert 2 * low < speed(found) < high / 2
    assert all(one.gpus == (0, 1) for one in found.candidates)
    own = plan(machine_of(FOUR_AND_FOUR), request(num_gpus=2, model="mine:build"))
    assert "the variables of mine:build are not known" in why(own)
    assert "nothing predicted" not in why(plan(machine_of(FOUR_AND_FOUR), Request(num_gpus=2)))


def test_an_earlier_run_of_one_gpu_is_a_speed() -> None:
    machine = machine_of(SEVEN)
    named = msgspec.structs.replace(
        machine, gpus=tuple(msgspec.structs.replace(gpu, name="GeForce GTX 1070") for gpu in machine.gpus)
    )
    history = (Figure("GeForce GTX 1070", "alexnet", 512, "fp32", 1234.0),)
    found = plan(named, Request(num_gpus=1, model="alexnet", batch_size=512), history=history)
    assert speed(found) == pytest.approx(1234.0)
    assert "measured here" in there(found.prediction).single_gpu_source


def test_what_was_learned_of_the_box_changes_the_constants_and_their_range() -> None:
    machine = machine_of(SEVEN)
    shares = {"parameter_server cpu": 0.5}
    slow = Learned(runs=5, jobs=3, links=0.7, variables=1.5, range_shares=shares)
    asked = request(num_gpus=2, ps="cpu")
    before, after = (plan(machine, asked, learned=one) for one in (None, slow))
    assert speed(after) < speed(before)
    assert there(after.prediction).learned == slow
    high, usual = (one.choice.images_per_sec_high for one in (after, before))
    assert high is not None
    assert usual is not None
    of_links_and_gpu = math.hypot(math.log(UNREAD_LINKS), math.log(1.03))
    for top, found, share in ((usual, before, 1.0), (high, after, 0.5)):
        own = math.hypot(share * math.log(1.25), of_links_and_gpu)
        assert top / speed(found) == pytest.approx(math.exp(own), rel=0.001)


@pytest.mark.parametrize("fields", [{"no_history": True}, {"program": "tf_cnn_benchmarks"}])
def test_without_history_and_with_other_programs_nothing_of_the_box_counts(fields: dict[str, Any]) -> None:
    machine, asked = machine_of(SEVEN), request(num_gpus=2, **fields)
    learned = Learned(runs=5, jobs=3, links=0.7, variables=1.5)
    assert plan(machine, asked, learned=learned) == plan(machine, asked)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"single_gpu_images_per_sec": (1.0, 2.0)}, "2 numbers for 7 GPUs"),
        ({"batch_size": 0}, "--batch-size cannot be 0"),
        ({"program": "tf_cnn"}, "no program 'tf_cnn'"),
        ({"model": "alexnett"}, "no model 'alexnett'"),
    ],
)
def test_what_cannot_be_predicted_from_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        plan(machine_of(SEVEN), request(num_gpus=2, **fields))


def test_links_of_which_nothing_is_known_are_assumed_and_the_reasons_say_so() -> None:
    found = plan(msgspec.structs.replace(machine_of(SEVEN), links=()), request(num_gpus=2))
    assert found.choice.gpus == (0, 1)
    assert found.prediction is not None
    assert "topology unknown" in why(found)
    assert "PCIe hops between GPUs 0-6 (nvidia-smi topo -m)" in why(found)


@pytest.mark.parametrize(
    ("model", "apart", "ran", "expected"),
    [
        ("alexnet", 0.001, {}, "gpu:spread"),
        ("resnet50", 0.001, {}, "cpu"),
        ("resnet50", 0.003, {}, None),
        ("resnet50", 0.001, {"replicated nccl": 0.9, "parameter_server cpu": 1.2}, None),
    ],
)
def test_of_placements_within_a_tie_the_one_with_the_better_record_is_chosen(
    model: str, apart: float, ran: dict[str, float], expected: str | None
) -> None:
    """By the size of the model's variables; first a mode whose runs on this box were as predicted."""
    machine, asked = machine_of(SEVEN), request(num_gpus=2, model=model)
    basis = basis_of(machine, asked, (), Learned(runs=3, jobs=3, range_shares=ran))
    assert isinstance(basis, Basis)
    places = (
        Placement("replicated", None, "nccl"),
        Placement("parameter_server", "cpu"),
        Placement("parameter_server", SPREAD),
    )
    found = [
        FoundCandidate((0, 1), place, StepSeconds(1 + apart * number), 1)
        for number, place in enumerate(places)
    ]
    chosen = Fastest(machine, asked, {}, basis).by_record(found)
    assert sorted(chosen) == sorted(found)
    assert chosen[0].placing.ps_device == expected
    if expected:
        assert (
            f"tie, settled by record: replicated nccl is predicted {chosen[0].prediction.step_s - 1:.1%}"
            in (record_reason(basis.model, chosen[0], found[0]))
        )


def test_the_range_is_never_a_point_and_wider_where_copies_below_a_switch_are_staged() -> None:
    """Of `independent`, too, which is at most the sum of its GPUs."""
    machine = machine_of(SEVEN)
    staged = msgspec.structs.replace(
        machine, links=tuple(msgspec.structs.replace(one, p2p_read="CNS") for one in machine.links)
    )
    for fields in ({"num_gpus": 1}, {"gpus": (0, 1)}, {"num_gpus": 2, "variable_update": "independent"}):
        one, other = (plan(box, request(**fields)).choice for box in (machine, staged))
        low, high = one.images_per_sec_low or 0.0, one.images_per_sec_high or 0.0
        assert low < (one.images_per_sec or 0.0) < high
        if "gpus" in fields:
            assert (other.images_per_sec_low or 0.0) / (other.images_per_sec or 1.0) < 0.62
            assert low / (one.images_per_sec or 1.0) > 0.66
        if "variable_update" in fields:
            assert high == pytest.approx(2060, rel=0.001)


def test_the_runners_up_differ_in_mode_or_by_more_than_can_be_told_apart() -> None:
    def one(gpus: tuple[int, ...], ps: str, images_per_sec: float) -> Candidate:
        return Candidate(gpus=gpus, ps_device=ps, images_per_sec=images_per_sec)

    choice = one((0, 1), "gpu:0", 100.0)
    same, cpu, far = one((2, 3), "gpu:3", 99.0), one((0, 1), "cpu", 98.0), one((0, 3), "gpu:0", 60.0)
    other = Candidate(gpus=(0, 1), variable_update="independent", images_per_sec=200.0)
    assert runners_up(choice, (choice, same, cpu, far, other)) == (cpu, far)


def test_the_choice_is_compared_with_the_lowest_gpus_by_nccl_and_with_fewer() -> None:
    found = plan(machine_of(SEVEN), request(num_gpus=3, exclude=(0,)))
    assert found.prediction is not None
    default = plan(machine_of(SEVEN), request(gpus=(1, 2, 3), all_reduce="nccl")).choice
    assert found.prediction.default_images_per_sec == default.images_per_sec
    fewer = there(found.prediction.fewer)
    two = plan(machine_of(SEVEN), request(num_gpus=2, exclude=(0,))).choice
    assert (fewer.num_gpus, fewer.images_per_sec) == (2, two.images_per_sec)
    alone = there(plan(machine_of(SEVEN), request(num_gpus=1)).prediction)
    assert (alone.fewer, alone.default_images_per_sec) == (None, None)
