"""What decides a choice, the candidates beside it, and what is predicted of them."""

from itertools import combinations
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo import captures
from gputopo.planner import Request, plan
from gputopo.prediction import Figure
from gputopo.values.errors import UsageError
from gputopo.values.machine import Gpu, GpuProcess, Machine, Pcie
from gputopo.values.run.all_reduce import NAMES
from gputopo.values.run.plan import ALL, Learned, MeasuredSpeed, Plan, mode_words
from tests import there
from tests.matrices import FOUR_AND_FOUR, SEVEN, changed, link_of, machine_of

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


@given(machines(), st.sampled_from(("alexnet", "resnet50")))
def test_all_candidates_of_named_gpus_are_every_placement_and_reduction(machine: Machine, model: str) -> None:
    """Each with its parts, which add up to the step; those without a prediction come last."""
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
        if one.step_ms is None:
            assert one.all_reduce not in ("nccl", "copy", "psgpu", "pscpu")
            continue
        assert one.step_ms == pytest.approx((one.compute_ms or 0) + sum(one.exposed_ms.values()), abs=1e-3)
        assert one.images_per_sec is not None
        assert one.images_per_sec_high is not None
        assert there(one.images_per_sec_low) <= one.images_per_sec <= one.images_per_sec_high
        assert one.limited_by
    independent = next(one for one in found.candidates if one.variable_update == "independent")
    assert independent.images_per_sec == pytest.approx(1000 * len(gpus))


def machine_with(name: str, *, count: int = 2, word: str = "SYS", p2p: str | None = None) -> Machine:
    """Return a machine of GPUs of one model."""
    pairs = combinations(range(count), 2)
    links = (there(link_of(a, b, word)) for a, b in pairs)
    return Machine(
        source="a test",
        gpus=tuple(Gpu(index=index, name=name) for index in range(count)),
        links=tuple(msgspec.structs.replace(link, p2p_read=p2p, p2p_write=p2p) for link in links),
    )


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (machine_with("NVIDIA B200", word="NV18"), "replicated nccl"),
        (machine_with("NVIDIA H100 80GB HBM3", count=8, word="NV18"), "replicated nccl"),
        (machine_with("NVIDIA GeForce RTX 4090", count=4), "replicated nccl"),
        (machine_with("NVIDIA GeForce RTX 4090", count=8), "replicated nccl"),
        (machine_with("Tesla K80", count=4, p2p="CNS"), "parameter_server cpu"),
        (machine_with("GeForce GTX 1080 Ti", p2p="CNS"), "parameter_server cpu"),
        (machine_with("GeForce GTX 1080 Ti", p2p="OK"), "replicated nccl"),
    ],
    ids=["2 B200", "8 H100", "4 RTX 4090", "8 RTX 4090", "4 K80", "2 GTX 1080 Ti", "with peer access"],
)
@pytest.mark.parametrize("model", ["vgg16", "resnet50"])
def test_the_rule_decides_unless_a_prediction_is_clearly_faster(
    machine: Machine, expected: str, model: str
) -> None:
    found = plan(machine, Request(model=model)).choice
    assert (found.evidence, mode_words(found)) == ("rule", expected)
    staged = "through host memory" in "".join(found.reasons)
    assert staged == (machine.gpus[0].name == "NVIDIA GeForce RTX 4090" or machine.links[0].p2p_read == "CNS")


def test_without_peer_access_the_reasons_say_what_the_exchange_costs() -> None:
    found = plan(machine_with("NVIDIA GeForce RTX 4090", count=4), Request(model="vgg16")).choice
    share = sum(found.exposed_ms.values()) / there(found.step_ms)
    assert any(one.endswith(f"the exchange takes {share:.0%} of a step") for one in found.reasons)


def ran(mode: str, images_per_sec: float, **changed: Any) -> MeasuredSpeed:
    update, place = mode.split()
    fields: dict[str, Any] = {
        "model": "alexnet", "precision": "fp32", "batch": 512, "gpus": (0, 1), "variable_update": update,
        "ps_device": None if update == "replicated" else place,
        "all_reduce": place if update == "replicated" else None,
        "images_per_sec": images_per_sec, "conditions": "equal", "says": "gputopo",
    }  # fmt: skip
    return MeasuredSpeed(**{**fields, **changed})


NCCL_SLOWER = (ran("replicated nccl", 1000.0), ran("parameter_server gpu:spread", 1200.0))


@pytest.mark.parametrize(
    ("speeds", "fields", "evidence"),
    [
        (NCCL_SLOWER, {}, "measured"),
        (NCCL_SLOWER, {"batch_size": 1000}, "predicted"),  # the speed of the placement that was faster
        (NCCL_SLOWER, {"batch_size": 200}, "rule"),
        (NCCL_SLOWER, {"precision": "fp16"}, "rule"),
        (NCCL_SLOWER, {"gpus": (3, 4), "num_gpus": None}, "predicted"),  # as near
        (NCCL_SLOWER[1:], {}, "rule"),
        ((NCCL_SLOWER[0], ran("parameter_server gpu:spread", 1200.0, conditions="other")), {}, "rule"),
    ],
)
def test_what_was_measured_here_decides_before_the_rule(
    speeds: tuple[MeasuredSpeed, ...], fields: dict[str, Any], evidence: str
) -> None:
    """Two placements of one job, batches within a factor of two, under the same conditions.

    A speed is called measured only if it was measured on these GPUs with this batch.
    """
    found = plan(
        machine_of(SEVEN),
        request(**{"num_gpus": 2, "batch_size": 512, **fields}),
        learned=Learned(runs=2, jobs=1, speeds=speeds),
    ).choice
    expected = "replicated nccl" if evidence == "rule" else "parameter_server gpu:spread"
    assert (found.evidence, mode_words(found)) == (evidence, expected)


def test_a_measured_difference_that_two_runs_may_have_leaves_the_rule() -> None:
    speeds = (ran("replicated nccl", 1000.0), ran("parameter_server gpu:spread", 1020.0))
    learned = Learned(runs=2, jobs=1, speeds=speeds)
    found = plan(machine_of(SEVEN), request(num_gpus=2, batch_size=512), learned=learned).choice
    assert (mode_words(found), found.images_per_sec) == ("replicated nccl", 1000.0)


def test_the_measurements_of_a_bundled_machine_decide_there() -> None:
    machine = captures.load(["7gforce"])
    found = plan(machine, Request(model="alexnet", num_gpus=2))
    assert (found.choice.gpus, mode_words(found.choice)) == ((0, 1), "parameter_server gpu:spread")
    assert (found.choice.evidence, round(speed(found))) == ("measured", 1864)
    assert "tf_cnn_benchmarks" in found.choice.reasons[0]
    unasked = plan(machine, Request(model="alexnet", num_gpus=2, by_measurements=False))
    assert (unasked.choice.evidence, mode_words(unasked.choice)) == ("rule", "replicated nccl")


def test_the_nearest_gpus_are_taken_if_the_fastest_ones_are_clearly_slower_together() -> None:
    machine = machine_of(SEVEN)
    narrow = msgspec.structs.replace(
        machine,
        gpus=tuple(
            msgspec.structs.replace(gpu, pcie=Pcie(gen_max=3, width_max=1 if gpu.index < 2 else 16))
            for gpu in machine.gpus
        ),
    )
    speeds = (900.0, 900.0, 700.0, 700.0, 700.0, 700.0, 700.0)
    asked = request(model="vgg16", num_gpus=2, single_gpu_images_per_sec=speeds)
    assert plan(machine, asked).choice.gpus == (0, 1)
    assert plan(narrow, asked).choice.gpus == (3, 4)


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


def test_what_was_learned_of_the_box_is_one_factor_of_steps_and_narrows_their_range() -> None:
    machine, asked = machine_of(SEVEN), request(num_gpus=2, ps="cpu")
    before = plan(machine, asked).choice
    after = plan(machine, asked, learned=Learned(runs=5, jobs=3, step_factor=1.2)).choice
    assert after.step_ms == pytest.approx(1.2 * there(before.step_ms), rel=1e-3)
    assert after.compute_ms == before.compute_ms
    wide, narrow = (there(one.images_per_sec_high) / there(one.images_per_sec) for one in (before, after))
    assert 1.0 < narrow < wide / 1.05


@pytest.mark.parametrize(
    ("fields", "factor"),
    [
        ({"num_gpus": 1}, 1.03),
        ({"gpus": (0, 1)}, 1.03 * 1.21),  # the error on machines that were left out of the fit
    ],
)
def test_the_range_is_that_of_the_speed_of_one_gpu_and_of_the_exchange(
    fields: dict[str, Any], factor: float
) -> None:
    found = plan(machine_of(SEVEN), request(**fields)).choice
    assert 1.0 < there(found.images_per_sec_high) / there(found.images_per_sec) <= factor + 1e-3


def test_a_range_wider_than_a_factor_of_two_is_no_number() -> None:
    """Of a network and a GPU that no figure is published of; nor does it decide."""
    machine = machine_with("NVIDIA GeForce RTX 4090")
    found = plan(machine, Request(model="densenet40_k12", num_gpus=2)).choice
    assert found.images_per_sec is not None
    assert (found.images_per_sec_low, found.images_per_sec_high) == (None, None)
    assert found.evidence == "rule"


def test_an_earlier_run_of_one_gpu_is_a_speed() -> None:
    machine = machine_of(SEVEN)
    named = msgspec.structs.replace(
        machine, gpus=tuple(msgspec.structs.replace(gpu, name="GeForce GTX 1070") for gpu in machine.gpus)
    )
    history = (Figure("GeForce GTX 1070", "alexnet", 512, "fp32", 1234.0),)
    found = plan(named, Request(num_gpus=1, model="alexnet", batch_size=512), history=history)
    assert speed(found) == pytest.approx(1234.0)
    assert "measured here" in there(found.prediction).single_gpu_source


@pytest.mark.parametrize(
    ("fields", "words", "hint"),
    [
        ({"single_gpu_images_per_sec": (1.0, 2.0)}, "2 numbers for 7 GPUs", "one number for all"),
        ({"batch_size": 0}, "--batch-size cannot be 0", "1 or more"),
        ({"model": "alexnett"}, "no model 'alexnett'", "alexnet"),
    ],
)
def test_what_cannot_be_predicted_from_is_refused(fields: dict[str, Any], words: str, hint: str) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        plan(machine_of(SEVEN), request(num_gpus=2, **fields))
    assert hint in refused.value.hint


def test_without_peer_access_a_parameter_server_is_the_cpu() -> None:
    asked = Request(model="resnet50", variable_update="parameter_server")
    for p2p, expected in (("CNS", "parameter_server cpu"), ("OK", "parameter_server gpu:spread")):
        found = plan(machine_with("GeForce GTX 1080 Ti", p2p=p2p), asked).choice
        assert mode_words(found) == expected


EXPLAINED = Request(model="alexnet", single_gpu_images_per_sec=(1500.0,), explain=True)


@pytest.mark.parametrize("ps", ["cpu", "gpu:0", "gpu:spread"])
def test_the_parts_of_a_timeline_are_those_of_the_choice(ps: str) -> None:
    made = plan(machine_of(FOUR_AND_FOUR), msgspec.structs.replace(EXPLAINED, ps=ps))
    line, choice = there(made.line), made.choice
    parts = {"weights": line.weights_ms, "gradients": line.gradients_ms, "variables": line.variables_ms}
    assert parts == choice.exposed_ms
    assert line.forward_ms + line.backward_ms == pytest.approx(choice.compute_ms, abs=1e-3)
    assert any(one.resource.startswith(str(choice.limited_by)) for one in line.resources)
    computed_ms = line.weights_ms + line.forward_ms + line.backward_ms
    assert line.blocks[-1].ready_ms == pytest.approx(computed_ms, abs=1e-3)
    assert line.blocks[-1].through_ms <= computed_ms + line.gradients_ms + 1e-3
