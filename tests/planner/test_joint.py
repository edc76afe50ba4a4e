"""The predicted step of several hosts."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputopo import planner
from gputopo.planner import HostNetwork, Request, choice_of_hosts, with_predicted_steps
from gputopo.values.machine import Hop, Machine
from gputopo.values.run.plan import Candidate, HostGpus, Plan
from tests.planner.joint_machines import box

ASKED = Request(model="resnet50", single_gpu_images_per_sec=(400.0,))
RESNET_MB = 102.2


def own_plans(machines: Sequence[Machine], request: Request) -> list[Plan]:
    """Return the plan of each host by itself."""
    asked = msgspec.structs.replace(request, variable_update="replicated")
    return [planner.plan(machine, asked, keep=1) for machine in machines]


def joined(
    own: Sequence[Plan], machines: Sequence[Machine], request: Request, gbit_per_s: float | None
) -> Plan:
    """Return the plan of hosts over a network of this rate, each with all of its GPUs."""
    names = [f"n{rank}" for rank in range(1, len(machines) + 1)]
    hosts = [HostNetwork(name, one, "eth9", gbit_per_s) for name, one in zip(names, machines, strict=True)]
    gpus = tuple(
        HostGpus(host=name, gpus=one.choice.gpus, devices=len(one.choice.gpus))
        for name, one in zip(names, own, strict=True)
    )
    choice = choice_of_hosts(msgspec.structs.replace(request, variable_update="replicated"), gpus)
    joint = msgspec.structs.replace(own[0], choice=choice, candidates=(choice,))
    return with_predicted_steps(joint, own, hosts, request, None)


def plan_of(*machines: Machine, request: Request = ASKED, gbit_per_s: float | None = 8.0) -> Plan:
    return joined(own_plans(machines, request), machines, request, gbit_per_s)


def of_size(size: int) -> Machine:
    return box(Hop.PIX, gpus=size)


def without_nccl(plan: Plan) -> Candidate:
    return plan.candidates[-1]


def network_ms(one: Candidate) -> float:
    return one.exposed_ms["network"]


def test_the_parts_add_up_to_the_step_and_the_network_is_one_of_them() -> None:
    one = without_nccl(plan_of(of_size(4), of_size(4)))
    assert one.compute_ms == pytest.approx(64 / 400 * 1e3)
    assert one.step_ms == pytest.approx((one.compute_ms or 0.0) + sum(one.exposed_ms.values()), abs=1e-2)
    assert network_ms(one) > 0
    assert one.links["network"] == "network of n1"
    assert one.limited_by == one.links["network"]
    low, speed, high = one.images_per_sec_low, one.images_per_sec, one.images_per_sec_high
    assert low
    assert speed
    assert high
    assert low < speed < high
    assert speed == pytest.approx(8 * 64 / (one.step_ms or 1.0) * 1e3, rel=1e-3)


def test_the_exchange_of_two_hosts_is_that_of_their_sums_over_each_network_path() -> None:
    """Each host sends half of the model as gradients, and half as sums."""
    alone = Request(model="resnet50", single_gpu_images_per_sec=(1e7,))
    slow = plan_of(of_size(1), of_size(1), request=alone, gbit_per_s=0.0125)
    half_ms = RESNET_MB / 2 / (0.64 * 0.0125 / 8)
    assert half_ms < network_ms(without_nccl(slow)) < 2 * half_ms
    four = plan_of(*[of_size(1)] * 4, request=alone, gbit_per_s=0.0125)
    assert network_ms(without_nccl(four)) == pytest.approx(1.5 * network_ms(without_nccl(slow)), rel=1e-3)


@settings(max_examples=5)
@given(
    st.lists(st.integers(1, 8), min_size=2, max_size=4),
    st.floats(0.4, 10.0),
    st.sampled_from(["resnet50", "vgg16", "alexnet"]),
)
def test_a_faster_network_never_makes_a_step_longer_nor_faster_than_without_one(
    sizes: list[int], gbit_per_s: float, model: str
) -> None:
    asked = Request(model=model, single_gpu_images_per_sec=(300.0,))
    machines = [of_size(size) for size in sizes]
    own = own_plans(machines, asked)
    slow, fast = (joined(own, machines, asked, each).choice for each in (gbit_per_s, 2 * gbit_per_s))
    alone = [one.choice.step_ms or 0.0 for one in own]
    assert (slow.step_ms or 0) >= (fast.step_ms or 0) >= max(alone) - 0.01
    assert network_ms(slow) >= network_ms(fast)


def test_the_slowest_host_sets_the_pace_and_examples_in_proportion_are_those_of_all_hosts() -> None:
    slow = box(Hop.PHB, gpus=2, name="Tesla P100-SXM2-16GB")
    asked = Request(model="resnet50")
    mixed = plan_of(of_size(2), slow, request=asked)
    assert mixed.choice.compute_ms == plan_of(slow, slow, request=asked).choice.compute_ms
    shared = plan_of(of_size(2), slow, request=msgspec.structs.replace(asked, batch_size="auto"))
    first, second, third, fourth = shared.choice.batch_sizes
    assert first == second > third == fourth
    assert (shared.choice.images_per_sec or 0.0) > (mixed.choice.images_per_sec or 0.0)


def test_nothing_is_predicted_if_the_network_or_the_model_of_a_gpu_is_unknown() -> None:
    unknown = plan_of(of_size(2), of_size(2), gbit_per_s=None).choice
    assert unknown.images_per_sec is None
    assert "the rate of the network of n1 and n2 is not known" in unknown.reasons[-1]
    strange = box(Hop.PIX, gpus=2, name="Test-100")
    found = plan_of(of_size(2), strange, request=Request(model="resnet50")).choice
    assert found.reasons[-1].startswith("nothing predicted: n2: there is no reference data for Test-100")
