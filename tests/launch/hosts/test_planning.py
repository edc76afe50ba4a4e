import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.hosts.planning import cpu_devices_of_each, devices_of_each, joint, request_of
from gputopo.launch.spec.prepare import spec_of
from gputopo.launch.spec.run_spec import Server
from gputopo.launch.spec.target import Target
from gputopo.planner.request import Request
from gputopo.values.errors import UsageError
from gputopo.values.gpu import ClockMhz, ClocksMhz
from gputopo.values.machine import Machine
from tests.launch.specs import machine, plan_for

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


def test_all_gpus_of_all_hosts_train_where_no_number_is_wanted() -> None:
    assert devices_of_each([4, 8, 2], None) == [4, 8, 2]
    assert devices_of_each([8, 8, 8], 12) == [6, 6, 0]
    assert devices_of_each([2, 8, 8], 10) == [2, 8, 0]


@pytest.mark.parametrize(("available", "wanted"), [([0, 8], 4), ([4, 4], 9), ([4, 4], 0)])
def test_gpus_that_are_not_there_are_refused(available: list[int], wanted: int) -> None:
    with pytest.raises(UsageError):
        devices_of_each(available, wanted)


def test_cpus_share_equally_or_not_at_all() -> None:
    assert cpu_devices_of_each(3, None) == [2, 2, 2]
    assert cpu_devices_of_each(2, 8) == [4, 4]
    with pytest.raises(UsageError, match="3 cannot be shared equally"):
        cpu_devices_of_each(2, 3)


def target(gpus: tuple[int, ...], box: Machine) -> Target:
    return Target("gpu", plan_for(gpus, None, variable_update="replicated"), box, box=box)


def servers(*names: str) -> list[Server]:
    return [Server(host=name, address=f"{name}:2222", cores=8) for name in names]


def test_each_device_is_named_by_its_host_and_gradients_are_added_within_a_host_first() -> None:
    box = machine()
    both = joint(
        [target((0, 1), box), target((2, 3), box)], servers("n1", "n2"), Request(model="trivial", num_gpus=4)
    )
    spec = spec_of(both, "trivial")
    assert [(one.tower, one.host, one.gpu, one.device) for one in spec.devices] == [
        (0, "n1", 0, "/job:worker/task:0/device:GPU:0"),
        (1, "n1", 1, "/job:worker/task:0/device:GPU:1"),
        (2, "n2", 2, "/job:worker/task:1/device:GPU:0"),
        (3, "n2", 3, "/job:worker/task:1/device:GPU:1"),
    ]
    assert (spec.variable_update, spec.all_reduce) == ("replicated", "hierarchical")
    assert spec.exchange.groups == ((0, 1), (2, 3))
    assert [one.address for one in spec.servers] == ["n1:2222", "n2:2222"]


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
    both = joint(
        [target((0,), slower), target((0,), faster)],
        servers("n1", "n1"),
        Request(model="trivial", num_gpus=2),
    )
    spec = spec_of(both, "trivial")
    assert [one.host for one in spec.devices] == ["n1 (rank 0)", "n1 (rank 1)"]
    assert spec.max_clocks_mhz == {"0": {"graphics": 1500}, "1:0": {"graphics": 2000}}


@pytest.mark.parametrize(
    ("ps", "device", "hops"),
    [
        ("cpu", "/job:worker/task:0/device:CPU:0", ["host", "host", "network"]),
        ("gpu:1", "/job:worker/task:0/device:GPU:1", ["PIX", "local", "network"]),
        ("host:1", "/job:worker/task:1/device:CPU:0", ["network", "network", "host"]),
    ],
)
def test_variables_of_a_server_are_on_one_of_the_hosts(ps: str, device: str, hops: list[str]) -> None:
    box = machine()
    asked = Request(model="trivial", num_gpus=3, ps=ps)
    both = joint([target((0, 1), box), target((2,), box)], servers("n1", "n2"), asked)
    spec = spec_of(both, "trivial")
    assert (spec.variable_update, spec.ps_device, spec.all_reduce) == ("parameter_server", device, None)
    assert [one.hop_to_variables for one in spec.devices] == hops


def test_a_host_that_does_not_train_cannot_hold_the_variables() -> None:
    box = machine()
    both = joint(
        [target((0,), box), target((1,), box)], servers("n1", "n2"), Request(num_gpus=2, ps="host:2")
    )
    with pytest.raises(UsageError, match="--ps host:2 is not among the 2 hosts"):
        spec_of(both, "trivial")


def test_hosts_with_and_without_gpus_do_not_train_together() -> None:
    without = Target("cpu", plan_for(()), None, why_cpu="No NVIDIA device")
    with pytest.raises(UsageError, match="n2 would train on CPU devices"):
        joint([target((0,), machine()), without], servers("n1", "n2"), Request(num_gpus=2))


def test_only_rank_0_looks_for_the_gpu_of_the_variables() -> None:
    asked = Request(num_gpus=6, ps="gpu:3", all_reduce=None)
    assert [request_of(asked, 3, rank).ps for rank in (0, 1)] == ["gpu:3", "auto"]
    assert [request_of(asked, 3, rank).num_gpus for rank in (0, 1)] == [3, 3]
