"""The predicted step of several hosts."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.planner.joint import HostPart, Joint, fewer_hosts, joint_of, places
from gputopo.planner.request import Request
from gputopo.prediction.links.hosts import NetworkRate, rate_of_card
from gputopo.values.machine import Hop
from gputopo.values.run.plan import Candidate, HostGpus
from tests.planner.joint_machines import box, two_switches

ASKED = Request(model="resnet50", single_gpu_images_per_sec=(400.0,))


def rate(gb_per_s: float) -> NetworkRate:
    return NetworkRate(gb_per_s, "eth0")


def steps_of(*sizes: int, request: Request = ASKED, gb_per_s: float = 1.0) -> Joint:
    parts = [HostPart(f"n{n}", two_switches(), tuple(range(size))) for n, size in enumerate(sizes, 1)]
    found = joint_of(parts, request, [rate(gb_per_s)] * len(sizes))
    assert isinstance(found, Joint)
    return found


def predicted(joint: Joint, request: Request = ASKED) -> Candidate:
    gpus = joint.parts[0].gpus
    most = max(len(part.gpus) for part in joint.parts)
    return joint.candidate(places(request, gpus, most)[0])


def network_ms(one: Candidate) -> float:
    return one.exposed_ms["network"]


def test_the_parts_add_up_to_the_step_and_the_network_is_one_of_them() -> None:
    one = predicted(steps_of(4, 4))
    assert one.compute_ms == pytest.approx(64 / 400 * 1e3)
    assert one.step_ms == pytest.approx((one.compute_ms or 0.0) + sum(one.exposed_ms.values()), abs=1e-3)
    assert network_ms(one) > 0
    assert one.links["network"] in ("network of n1", "network of n2")
    assert one.limited_by == one.links["network"]
    low, speed, high = one.images_per_sec_low, one.images_per_sec, one.images_per_sec_high
    assert low
    assert speed
    assert high
    assert low < speed < high
    assert speed == pytest.approx(8 * 64 / (one.step_ms or 1.0) * 1e3, rel=1e-3)


def test_the_exchange_of_two_hosts_is_that_of_their_sums_over_each_network_path() -> None:
    """resnet50: 102 MB; without anything else each host sends and receives half of it as sums, half back."""
    alone = Request(model="resnet50", single_gpu_images_per_sec=(1e9,))
    slow = predicted(steps_of(1, 1, request=alone, gb_per_s=0.001), alone)
    # 51 MB of gradients, and 51 MB of sums times the share that is waited for, at 1 MB/s each way.
    assert 51e3 < network_ms(slow) < 2 * 1.1 * 51e3


@given(
    st.lists(st.integers(1, 8), min_size=2, max_size=4),
    st.floats(0.05, 5.0),
    st.sampled_from(["resnet50", "vgg16", "alexnet"]),
)
def test_a_faster_network_never_makes_a_step_longer_nor_faster_than_without_one(
    sizes: list[int], gb_per_s: float, model: str
) -> None:
    asked = Request(model=model, single_gpu_images_per_sec=(300.0,))
    slow, fast, none = (
        predicted(steps_of(*sizes, request=asked, gb_per_s=each), asked)
        for each in (gb_per_s, 2 * gb_per_s, 1e6)
    )
    assert (slow.step_ms or 0) >= (fast.step_ms or 0) >= (none.step_ms or 0)
    assert network_ms(none) == pytest.approx(0.0, abs=0.01)


def test_half_the_hosts_and_half_of_those_are_asked_whether_they_would_be_as_fast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def of_first(joint: Joint, hosts: int) -> Joint:
        asked.append(hosts)
        return joint

    joint = steps_of(1, 1, 1, 1, 1)
    monkeypatch.setattr(Joint, "of_first", of_first)
    monkeypatch.setattr(Joint, "images_per_sec", lambda *_: 0.0)
    one = predicted(joint)
    hosts = tuple(HostGpus(host=part.name, gpus=(0,), devices=1) for part in joint.parts)
    assert fewer_hosts(msgspec.structs.replace(one, hosts=hosts), joint, Candidate(gpus=(0,))) == []
    assert asked == [2, 4]


def test_the_slowest_network_decides_and_is_named() -> None:
    parts = [HostPart(f"n{n}", two_switches(), (0, 1)) for n in (1, 2, 3)]
    found = joint_of(parts, ASKED, [rate(1.0), rate(0.2), rate(1.0)])
    assert isinstance(found, Joint)
    assert predicted(found).links["network"] == "network of n2"


def test_variables_on_one_host_send_all_weights_and_gradients_of_the_others_over_its_card() -> None:
    joint = steps_of(4, 4, 4)
    replicated = predicted(joint)
    for place in ("cpu", "host:2", "gpu:1"):
        asked = msgspec.structs.replace(ASKED, ps=place)
        served = predicted(joint, asked)
        owner = "n3" if place == "host:2" else "n1"
        assert served.links["network"] == f"network of {owner}"
        assert network_ms(served) > 3 * network_ms(replicated)


def test_the_slowest_gpu_of_any_host_sets_the_pace() -> None:
    slow = box(Hop.PHB, gpus=2, name="Tesla P100-SXM2-16GB")
    asked = Request(model="resnet50")
    found = joint_of(
        [HostPart("n1", two_switches(), (0, 1)), HostPart("n2", slow, (0, 1))],
        asked,
        [rate_of_card(25.0, "eth0")] * 2,
    )
    alike = joint_of(
        [HostPart("n1", slow, (0, 1)), HostPart("n2", slow, (0, 1))], asked, [rate_of_card(25.0, "eth0")] * 2
    )
    assert isinstance(found, Joint)
    assert isinstance(alike, Joint)
    assert found.compute_s == alike.compute_s


def test_nothing_is_predicted_if_the_network_or_the_model_of_a_gpu_is_unknown() -> None:
    parts = [
        HostPart("n1", two_switches(), (0, 1)),
        HostPart("n2", box(Hop.PIX, gpus=2, name="Test-100"), (0, 1)),
    ]
    request = Request(model="resnet50")
    assert joint_of(parts[:1] * 2, request, "the rate is not known") == "the rate is not known"
    why = joint_of(parts, request, [rate(1.0)] * 2)
    assert isinstance(why, str)
    assert why.startswith("n2: there is no reference data for Test-100")
