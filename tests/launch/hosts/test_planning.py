import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch import Target
from gputopo.launch.hosts import Joining, Resources, devices_of_each, plan_hosts
from gputopo.launch.spec import check, spec_of
from gputopo.planner import Request, SavedNetwork
from gputopo.values.bandwidth import Bandwidth, Samples, TransferRate
from gputopo.values.ends import End
from gputopo.values.errors import UsageError
from gputopo.values.machine import ClockMhz, ClocksMhz, Hop, Machine
from gputopo.values.run.plan import Plan
from gputopo.values.run.spec import Exchange, Lifecycle
from tests.launch.specs import machine
from tests.planner.joint_machines import box, two_switches

# GPUs of each host, at least one on rank 0, and a number of them.
REQUESTS = st.builds(
    lambda first, others, number: ([first, *others], 1 + number % (first + sum(others))),
    st.integers(1, 16),
    st.lists(st.integers(0, 16), max_size=11),
    st.integers(0, 200),
)


@given(REQUESTS)
def test_the_devices_are_those_wanted_and_no_host_has_more_than_it_has(
    request: tuple[list[int], int],
) -> None:
    available, wanted = request
    counts = devices_of_each(available, wanted)
    assert sum(counts) == wanted
    assert all(0 <= count <= has for count, has in zip(counts, available, strict=True))
    assert counts[0], "rank 0 trains"


@given(REQUESTS)
def test_no_fewer_hosts_would_do_and_the_shares_are_as_equal_as_they_can_be(
    request: tuple[list[int], int],
) -> None:
    available, wanted = request
    counts = devices_of_each(available, wanted)
    used = [rank for rank, count in enumerate(counts) if count]
    best = sorted(available[1:], reverse=True)[: max(len(used) - 2, 0)]
    assert len(used) == 1 or available[0] + sum(best) < wanted
    free = [counts[rank] for rank in used if counts[rank] < available[rank]]
    assert not free or max(counts) - min(free) <= 1


@given(REQUESTS)
def test_the_fewest_hosts_share_the_devices_as_equally_as_they_can(request: tuple[list[int], int]) -> None:
    available, wanted = request
    counts = devices_of_each(available, wanted)
    assert sum(counts) == wanted
    assert all(0 <= count <= has for count, has in zip(counts, available, strict=True))
    assert counts[0], "rank 0 trains"
    assert devices_of_each(available, None) == available
    used = [rank for rank, count in enumerate(counts) if count]
    best = sorted(available[1:], reverse=True)[: max(len(used) - 2, 0)]
    assert len(used) == 1 or available[0] + sum(best) < wanted
    free = [counts[rank] for rank in used if counts[rank] < available[rank]]
    assert not free or max(counts) - min(free) <= 1


@pytest.mark.parametrize(("available", "wanted"), [([0, 8], 4), ([4, 4], 9), ([4, 4], 0)])
def test_gpus_that_are_not_there_are_refused(available: list[int], wanted: int) -> None:
    with pytest.raises(UsageError):
        devices_of_each(available, wanted)


def brought(name: str, box: Machine | None, **resources: Any) -> Joining:
    return Joining(
        rank=0, name=name, version="1", address=name, port=2222, machine=box, resources=Resources(**resources)
    )


def test_cpus_share_equally_or_not_at_all() -> None:
    def devices(hosts: int, wanted: int | None, each: int = 2) -> list[int]:
        brings = [brought(f"n{rank}", None) for rank in range(hosts)]
        target = plan_hosts(brings, Request(model="trivial", num_gpus=wanted), cpu_devices=each).target
        return [one.devices for one in target.plan.choice.hosts]

    assert devices(3, None) == [2, 2, 2]
    assert devices(3, None, 1) == [1, 1, 1]
    assert devices(2, 8) == devices(2, 8, 1) == [4, 4]
    with pytest.raises(UsageError, match="3 cannot be shared equally"):
        devices(2, 3)


def of_both(*names: str, boxes: Sequence[Machine] = (), **asked: Any) -> Target:
    """Return the target of hosts that are this machine with four GPUs, or others."""
    hosts = [brought(name, box) for name, box in zip(names, boxes or [machine()] * 2, strict=True)]
    return plan_hosts(hosts, Request(model="trivial", **asked)).target


def test_each_device_is_named_by_its_host_and_gradients_are_added_within_a_host_first() -> None:
    spec = spec_of(of_both("n1", "n2", num_gpus=4, gpus=(0, 1), all_reduce="hierarchical"), "trivial")
    assert [(one.tower, one.host, one.gpu, one.device) for one in spec.devices] == [
        (0, "n1", 0, "/job:worker/task:0/device:GPU:0"),
        (1, "n1", 1, "/job:worker/task:0/device:GPU:1"),
        (2, "n2", 0, "/job:worker/task:1/device:GPU:0"),
        (3, "n2", 1, "/job:worker/task:1/device:GPU:1"),
    ]
    assert (spec.variable_update, spec.all_reduce) == ("replicated", "hierarchical")
    assert [one.hop_to_variables for one in spec.devices] == [None] * 4, "each has its own copy"
    assert spec.exchange.groups == ((0, 1), (2, 3))
    assert [one.address for one in spec.servers] == ["n1:2222", "n2:2222"]


def test_small_gradients_travel_together_between_hosts_unless_it_is_asked_otherwise() -> None:
    both = of_both("n1", "n2", num_gpus=2, gpus=(0,), all_reduce="hierarchical")

    def small(asked: dict[str, object], **exchange: int) -> tuple[int, int]:
        found = spec_of(both, "trivial", asked, exchange=Exchange(**exchange)).exchange  # type: ignore[arg-type]
        return found.small_bytes, found.small_group

    assert small({}) == (2**20, 16)
    assert small({"agg_small_grads_max_bytes": "0"})[0] == 0
    assert small({"agg_small_grads_max_bytes": "9"}, small_bytes=9) == (9, 10)
    assert small({"gradient_repacking": "3"}, repacking=3)[0] == 0
    asked = Request(model="trivial", num_gpus=2, all_reduce="copy")
    alone = plan_hosts([brought("n1", machine())], asked).target
    assert spec_of(alone, "trivial").exchange.small_bytes == 0, "on one host"
    saved = Lifecycle(checkpoints="saved")
    check(spec_of(both, "trivial", task="eval", lifecycle=saved))  # where nothing is exchanged


def test_hosts_of_one_name_are_told_apart_and_each_has_the_maximum_clocks_of_its_own_gpus() -> None:
    slower, faster = (
        msgspec.structs.replace(
            box,
            gpus=tuple(
                msgspec.structs.replace(gpu, clocks_mhz=ClocksMhz(graphics=ClockMhz(max=mhz)))
                for gpu in box.gpus
            ),
        )
        for box, mhz in ((machine(), 1500), (machine(), 2000))
    )
    both = of_both("n1", "n1", boxes=(slower, faster), num_gpus=2, gpus=(0,))
    spec = spec_of(both, "trivial")
    assert [one.host for one in spec.devices] == ["n1 (rank 0)", "n1 (rank 1)"]
    assert spec.max_clocks_mhz == {"0": {"graphics": 1500}, "1:0": {"graphics": 2000}}


@pytest.mark.parametrize(
    ("ps", "device", "hops"),
    [
        ("gpu:1", "/job:worker/task:0/device:GPU:1", ["PIX", "local", "network", "network"]),
        ("host:1", "/job:worker/task:1/device:CPU:0", ["network", "network", "host", "host"]),
    ],
)
def test_variables_of_a_server_are_on_one_of_the_hosts(ps: str, device: str, hops: list[str]) -> None:
    spec = spec_of(of_both("n1", "n2", num_gpus=4, gpus=(0, 1), ps=ps), "trivial")
    assert (spec.variable_update, spec.ps_device, spec.all_reduce) == ("parameter_server", device, None)
    assert [one.hop_to_variables for one in spec.devices] == hops


def planned(*hosts: Joining, request: Request) -> Plan:
    return plan_hosts(hosts, request).target.plan


def test_the_step_of_all_hosts_is_predicted_with_what_the_network_costs() -> None:
    asked = Request(model="vgg16", single_gpu_images_per_sec=(400.0,))
    plan = planned(brought("n1", two_switches()), brought("n2", two_switches()), request=asked)
    choice = plan.choice
    assert [(one.host, one.devices) for one in choice.hosts] == [("n1", 8), ("n2", 8)]
    assert choice.exposed_ms["network"] > 0
    said = " ".join(choice.reasons)
    assert "times as fast as GPUs 0-7 of n1 alone" in said
    assert "slowest network, of n1: 1 RDMA card, 25 Gbit/s; NCCL reaches 2.5 GB/s" in said
    assert plan.prediction is not None
    assert len(plan.prediction.single_gpu_images_per_sec) == 16
    assert [one.all_reduce for one in plan.candidates] == ["nccl", "hierarchical"]


def test_what_sends_more_than_a_ring_between_hosts_is_not_predicted() -> None:
    request = Request(model="vgg16", single_gpu_images_per_sec=(400.0,), ps="cpu")
    plan = planned(brought("n1", two_switches()), brought("n2", two_switches()), request=request)
    assert plan.choice.images_per_sec is None
    assert plan.choice.reasons[-1] == (
        "nothing predicted: for several hosts, only ring reductions can be predicted"
    )


def test_where_the_network_is_unknown_nothing_is_predicted_and_auto_is_all_gpus() -> None:
    bare = msgspec.structs.replace(two_switches(), nics=())
    asked = Request(model="resnet50", num_gpus="auto", single_gpu_images_per_sec=(400.0,))
    plan = planned(brought("n1", bare), brought("n2", bare), request=asked)
    assert (plan.choice.images_per_sec, plan.prediction) == (None, None)
    assert plan.choice.reasons[-1].startswith("nothing predicted: the rate of the network of n1 and n2")
    assert plan.how_many is not None
    assert plan.how_many.num_gpus == 16
    assert "the rate of the network" in plan.how_many.reason


def test_a_saved_measurement_of_the_network_is_used() -> None:
    bare = msgspec.structs.replace(two_switches(), nics=())
    hosts = (brought("n1", bare), brought("n2", bare))
    samples = tuple(
        TransferRate(
            kind="network", source=End(f"host:{a}"), destination=End(f"host:{b}"), median_gb_per_s=1.0
        )
        for a, b in (("n1", "n2"), ("n2", "n1"))
    )
    saved = SavedNetwork(Bandwidth(source="live", samples=Samples(samples)), "on 2026-11-20")
    asked = Request(model="resnet50", single_gpu_images_per_sec=(400.0,))
    plan = plan_hosts(hosts, asked, saved=saved).target.plan
    assert plan.choice.images_per_sec is not None
    assert "1 GB/s of TCP measured on 2026-11-20" in plan.choice.reasons[-1]


def test_the_number_of_gpus_stops_at_one_host_where_the_network_costs_more_than_it_brings() -> None:
    asked = Request(model="vgg16", num_gpus="auto", single_gpu_images_per_sec=(400.0,))
    plan = planned(brought("n1", two_switches()), brought("n2", two_switches()), request=asked)
    assert plan.choice.hosts == ()
    assert plan.how_many is not None
    assert plan.how_many.num_gpus == 8
    assert [one.num_gpus for one in plan.how_many.counts] == [1, 2, 4, 8, 16]
    small = msgspec.structs.replace(asked, model="resnet50", single_gpu_images_per_sec=(20.0,))
    plan = planned(brought("n1", two_switches()), brought("n2", two_switches()), request=small)
    assert [one.devices for one in plan.choice.hosts] == [8, 8]


def by_rails(gpus: int = 4, gbit_per_s: float = 400.0) -> Machine:
    nics = [{gpu: Hop.PIX if gpu == nic else Hop.SYS for gpu in range(gpus)} for nic in range(gpus)]
    return box(Hop.NODE, nics, gpus=gpus, gbit_per_s=gbit_per_s)


def test_nccl_over_fast_cards_is_chosen_and_two_hosts_are_nearly_twice_as_fast() -> None:
    asked = Request(model="vgg16", single_gpu_images_per_sec=(1000.0,))
    hosts = [brought("n1", by_rails()), brought("n2", by_rails())]
    found = plan_hosts(hosts, asked).target
    choice = found.plan.choice
    assert choice.all_reduce == "nccl"
    alone = found.plan.candidates[1]
    assert (choice.images_per_sec or 0.0) > 3 * (alone.images_per_sec or 0.0), "gRPC reaches 1 GB/s"
    said = " ".join(choice.reasons)
    assert "4 RDMA cards, 1600 Gbit/s" in said
    assert float(re.search(r"2 hosts are ([0-9.]+) times", said)[1]) > 1.5  # type: ignore[index]
    # TensorFlow's own strategy trains so, unless the reduction was named.
    assert spec_of(found, "vgg16").strategy == "multi_worker_mirrored:nccl"
    named = planned(*hosts, request=msgspec.structs.replace(asked, all_reduce="nccl"))
    assert named.choice.images_per_sec == choice.images_per_sec
    spec = spec_of(replace(found, plan=named), "vgg16", {"all_reduce": "nccl"})
    assert (spec.strategy, spec.all_reduce) == (None, "nccl")


def test_a_slower_link_of_one_host_or_between_them_limits_nccl() -> None:
    asked = Request(model="vgg16", single_gpu_images_per_sec=(1000.0,), all_reduce="nccl")
    fast, slow = by_rails(1), by_rails(1, gbit_per_s=25.0)  # nothing but the network between GPUs

    def network_ms(*boxes: Machine) -> float:
        hosts = [brought(f"n{rank}", one) for rank, one in enumerate(boxes)]
        return planned(*hosts, request=asked).choice.exposed_ms["network"]

    assert network_ms(fast, slow) == pytest.approx(network_ms(slow, slow))
    assert network_ms(fast, fast) < network_ms(fast, slow) / 4
    # Twice half the bytes of the model, 553 MB of vgg16, over each host's card, part of them during backward.
    card = 0.8 * 25 / 8
    assert network_ms(slow, slow) < 1e3 * 0.553 / card < 2 * network_ms(slow, slow)


def test_nccl_is_no_candidate_where_hosts_have_unequal_numbers_of_gpus() -> None:
    asked = Request(model="vgg16", num_gpus=7, single_gpu_images_per_sec=(1000.0,))
    plan = planned(brought("n1", by_rails()), brought("n2", by_rails(3)), request=asked)
    assert [one.all_reduce for one in plan.candidates] == ["hierarchical"]
    assert "NCCL between hosts takes equal numbers of GPUs on each: --num-gpus" in plan.choice.reasons


def test_hosts_of_one_name_are_told_apart_in_the_plan() -> None:
    asked = Request(model="resnet50", num_gpus=16)
    plan = planned(brought("n1", two_switches()), brought("n1", two_switches()), request=asked)
    assert [one.host for one in plan.choice.hosts] == ["n1 (rank 0)", "n1 (rank 1)"]


def test_batches_of_each_device_are_those_of_all_hosts_in_their_order() -> None:
    asked = Request(model="resnet50", batch_size=(64,) * 8 + (32,) * 8, single_gpu_images_per_sec=(400.0,))
    hosts = (brought("n1", two_switches()), brought("n2", two_switches()))
    plan = planned(*hosts, request=asked)
    assert plan.choice.batch_sizes == asked.batch_size
    assert plan.choice.compute_ms == pytest.approx(64 / 400 * 1e3)
    with pytest.raises(UsageError, match="--batch-size has 8 numbers for 16 devices"):
        planned(*hosts, request=msgspec.structs.replace(asked, batch_size=(64,) * 8))
    with pytest.raises(UsageError, match="cannot be combined with --num-gpus auto"):
        planned(*hosts, request=msgspec.structs.replace(asked, num_gpus="auto"))


def test_each_host_is_planned_for_with_the_batches_of_its_own_devices() -> None:
    asked = Request(model="resnet50", num_gpus=5, batch_size=(1, 2, 3, 4, 5), exclude=tuple(range(6)))
    found = plan_hosts([brought(f"n{rank}", two_switches()) for rank in range(3)], asked).target
    assert [one.devices for one in found.plan.choice.hosts] == [1, 2, 2], "two GPUs are left on each"
    assert [one.plan.choice.batch_sizes for one in found.others] == [(2, 3), (4, 5)]
    assert spec_of(found, "resnet50", batch_size=asked.batch_size).batches == (1, 2, 3, 4, 5)


def test_a_host_that_does_not_take_part_cannot_hold_the_variables_of_a_plan() -> None:
    hosts = (brought("n1", two_switches()), brought("n2", two_switches()))
    asked = Request(model="resnet50", num_gpus=16)
    assert planned(*hosts, request=msgspec.structs.replace(asked, ps="host:1")).choice.ps_device == "host:1"
    with pytest.raises(UsageError, match="--ps host:2 is not among the 2 hosts"):
        planned(*hosts, request=msgspec.structs.replace(asked, ps="host:2"))
