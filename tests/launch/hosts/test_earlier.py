"""What earlier runs over the same hosts say of a plan: of hosts that differ from what is assumed."""

from collections.abc import Sequence
from math import log

import msgspec
import pytest

from gputopo.launch.hosts.earlier import EarlierRuns, Shown, shown_by
from gputopo.launch.hosts.messages import Joining
from gputopo.launch.hosts.planning import plan_hosts, target_alone
from gputopo.launch.spec.prepare import spec_of
from gputopo.launch.spec.target import Target
from gputopo.planner.joint import HostPart, Joint, joint_of
from gputopo.planner.request import Request
from gputopo.prediction.links.hosts import rate_of_card
from gputopo.prediction.one_gpu_speeds import Figure
from gputopo.values import schema
from gputopo.values.machine import Machine
from gputopo.values.run.events import Device
from gputopo.values.run.plan import Learned, Plan
from gputopo.values.run.result import DeviceResult, Result, Throughput
from gputopo.workload.workloads import require
from tests.planner.joint_machines import V100, two_switches

BATCH = 64
GPUS = (0, 1, 2, 3)  # of each host
RATES = [rate_of_card(25.0, "eth0")] * 2
TRUE = Learned(runs=9, jobs=9, links=0.7, variables=1.2)  # what these hosts differ by
OF_ONE = {"n1": 300.0, "n2": 240.0}  # images/sec


def brought(name: str, box: Machine | None = None) -> Joining:
    return Joining(
        rank=0,
        name=name,
        version="1",
        address=f"address of {name}",
        port=2222,
        machine=box or two_switches(),
        resources={"interface": "eth0", "rate_gbit_per_s": 25.0},
    )


def target(
    model: str, *names: str, earlier: EarlierRuns | None = None, gpus: Sequence[int] = GPUS, ps: str = "auto"
) -> Target:
    hosts = [brought(name) for name in names]
    request = Request(model=model, batch_size=BATCH, gpus=tuple(gpus), ps=ps)
    return plan_hosts(
        hosts, request, lambda request, cpu: target_alone(hosts[0], request), earlier=earlier
    ).target


def parts_of(of: Target) -> list[HostPart]:
    return [HostPart(one.host, two_switches(), one.gpus) for one in of.plan.choice.hosts]


def ran(model: str, *names: str, gpus: Sequence[int] = GPUS, ps: str = "auto") -> Result:
    """A run over these hosts, whose steps follow TRUE and OF_ONE."""
    names = names or ("n1", "n2")
    of = target(model, *names, gpus=gpus, ps=ps)
    figures = [(Figure(V100, model, BATCH, "fp32", OF_ONE.get(name, 300.0)),) for name in names]
    steps = joint_of(
        parts_of(of), Request(model=model, batch_size=BATCH), RATES[:1] * len(names), figures, TRUE
    )
    assert isinstance(steps, Joint)
    speed = steps.candidate(of.plan.choice).images_per_sec or 0.0
    spec = spec_of(of, model, batch_size=BATCH)
    return Result(
        status="complete",
        exit_code=0,
        spec=msgspec.json.decode(schema.encode(spec)),
        backend="gpu",
        steps=100,
        warmup_steps=10,
        steady_steps=0,
        batch_size=BATCH,
        throughput=Throughput(mean=speed, uncertainty=0.001 * speed, jitter=1.0, median=speed, total=speed),
        devices=tuple(_row(one) for one in spec.devices),
    )


def _row(device: Device) -> DeviceResult:
    seconds = BATCH / OF_ONE.get(device.host or "", 300.0)
    return DeviceResult(device=device, batch_size=BATCH, weights_ms=0.0, compute_ms=1e3 * seconds)


def shown(results: Sequence[Result], rates: object = RATES) -> Shown | None:
    of = target("resnet50", "n1", "n2")
    return shown_by(EarlierRuns(tuple(results), require), of.servers, parts_of(of), rates)  # type: ignore[arg-type]


JOBS = [ran("vgg16"), ran("resnet152")]


def test_two_jobs_show_what_links_and_variables_differ_by() -> None:
    found = shown(JOBS)
    assert found is not None
    assert found.learned is not None
    assert (found.learned.runs, found.learned.jobs) == (2, 2)
    assert found.learned.links == pytest.approx(TRUE.links, rel=0.07)
    assert list(found.learned.range_shares) == ["replicated hierarchical"]


def test_the_marks_are_speeds_of_the_gpus_of_each_host() -> None:
    found = shown(JOBS[:1])
    assert found is not None
    ((first,), (second,)) = found.figures
    assert (first.model, second.model) == ("vgg16", "vgg16")
    assert (first.images_per_sec, second.images_per_sec) == pytest.approx((300.0, 240.0))
    assert found.learned == Learned(runs=1, jobs=1)


@pytest.mark.parametrize(
    "other",
    [
        ran("vgg16", "n1", "n3"),
        ran("vgg16", "n2", "n1"),
        ran("vgg16", "n1", "n2", "n3"),
        ran("vgg16", gpus=(0, 1)),
        ran("vgg16", ps="host:1"),
        msgspec.structs.replace(JOBS[0], status="failed"),
    ],
    ids=["another host", "another order", "one more", "fewer GPUs", "variables on another host", "failed"],
)
def test_what_was_no_run_over_the_same_devices_shows_nothing(other: Result) -> None:
    assert shown([other]) is None


def test_another_network_or_another_model_of_gpu_shows_nothing() -> None:
    spec = JOBS[0].spec
    servers = [{**one, "address": "elsewhere:2222"} for one in spec["servers"]]
    devices = [{**one, "gpu_name": "Tesla K80"} for one in spec["devices"]]
    for changed in ({"servers": servers}, {"devices": devices}):
        assert shown([msgspec.structs.replace(JOBS[0], spec={**spec, **changed})]) is None


def test_where_the_network_is_not_known_no_constant_is_adjusted() -> None:
    found = shown(JOBS, "the rate of the network of n2 is not known")
    assert found is not None
    assert found.learned is None


def test_earlier_runs_bring_a_plan_near_and_its_range_becomes_narrower() -> None:
    earlier = EarlierRuns((*JOBS, ran("resnet50")), require)
    measured = ran("resnet50").throughput
    assert measured is not None
    before, after = (target("resnet50", "n1", "n2", earlier=one).plan for one in (None, earlier))
    assert abs(log((after.choice.images_per_sec or 0.0) / measured.median)) < 0.03
    assert _width(after) < 0.5 * _width(before)
    assert after.prediction is not None
    assert after.prediction.learned is not None
    assert after.prediction.single_gpu_source.startswith("measured here: time marks of runs on several ")
    assert any("times as fast as GPUs 0-3 of n1 alone" in one for one in after.choice.reasons)


def _width(plan: Plan) -> float:
    return log((plan.choice.images_per_sec_high or 0.0) / (plan.choice.images_per_sec_low or 1.0))
