"""What is known before a run, and where its expected speed is from."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gputopo.captures import read_bundled
from gputopo.runs import BoxHistory, known_before, with_alone
from gputopo.values.machine import Machine, Nic, NicPort
from gputopo.values.run.events import Device
from gputopo.values.run.plan import Candidate, Plan, Prediction
from gputopo.values.run.program import job_of
from gputopo.values.run.result import Result
from gputopo.values.run.spec import RunSpec
from gputopo.values.run.verdict import Known
from gputopo.workload import require_workload
from tests import there
from tests.invented_runs import gpu_devices, on_hosts
from tests.runs.boxes import BATCH, ON_CPU, run, spec_of
from tests.runs.test_history import run_folder

MACHINE = read_bundled("7gforce")
PLAN = Plan(
    choice=Candidate(
        gpus=(0, 1),
        variable_update="parameter_server",
        images_per_sec=200.0,
        images_per_sec_low=180.0,
        images_per_sec_high=220.0,
    ),
    prediction=Prediction(
        program="gputopo", batch_size=BATCH, single_gpu_images_per_sec={}, single_gpu_source=""
    ),
)
UNPREDICTED = Plan(choice=Candidate(gpus=(0, 1), variable_update="parameter_server"))


def core(spec: dict[str, Any]) -> RunSpec:
    found = job_of(spec)
    assert isinstance(found, RunSpec)
    return found


def known(
    *past: Result, plan: Plan = PLAN, gpus: tuple[int, ...] = (0, 1), model: str = "vgg16", **spec: Any
) -> Known:
    stored = {**spec_of(MACHINE, model, gpus, ON_CPU), **spec}
    return known_before(core(stored), [MACHINE], plan, past, require_workload(model))


def test_earlier_runs_of_the_job_count_before_the_plan() -> None:
    past = [run(MACHINE, "vgg16", slower=slower) for slower in (1.0, 1.02, 0.99)]
    expected = there(known(*past).expected)
    assert expected.source == "the median of 3 earlier runs of this job on this machine"
    assert expected.images_per_sec == there(past[0].throughput).median
    assert expected.low == pytest.approx(0.97 * expected.images_per_sec)
    assert expected.high == pytest.approx(1.03 * expected.images_per_sec)


@pytest.mark.parametrize(
    "other",
    [
        run(MACHINE, "alexnet"),
        run(MACHINE, "vgg16", status="failed"),
        run(MACHINE, "vgg16", spec={**spec_of(MACHINE, "vgg16", (0, 1), ON_CPU), "drills": [{"kind": "x"}]}),
    ],
    ids=["another model", "failed", "a drill"],
)
def test_a_run_of_another_job_does_not_count_and_the_plan_is_the_source(other: Result) -> None:
    expected = there(known(other).expected)
    assert (expected.source, expected.low) == ("predicted by the plan", 180.0)


def test_without_history_earlier_runs_do_not_count() -> None:
    expected = there(known(run(MACHINE, "vgg16"), asked={"no_history": True}).expected)
    assert expected.source == "predicted by the plan"


def test_published_figures_of_the_same_gpus_and_job_are_the_last_source() -> None:
    row = known(plan=UNPREDICTED, model="alexnet")
    assert row.expected is None
    alike = {"variable_update": "replicated", "all_reduce": "nccl"}
    spec = {**spec_of(MACHINE, "alexnet", (0, 1), ON_CPU), **alike, "batch_size": 512}
    found = there(known_before(core(spec), [MACHINE], UNPREDICTED, ()).expected)
    assert found.source == "published for the same GPUs (rossumai)"
    assert found.low < found.images_per_sec < found.high


def test_where_nothing_is_known_it_is_reported_and_why() -> None:
    found = known(plan=UNPREDICTED, data={"folder": "/data", "source": "gpu"})
    assert found.expected is None
    assert found.unexpected == (
        "there is no earlier run of this job on this machine, the time of the input is not predicted, "
        "and no figure of it was published"
    )


def test_gpus_below_one_switch_share_its_link_and_memory_is_known() -> None:
    found = known(gpus=(0, 1, 5))
    assert found.sharing == {0: (1,), 1: (0,)}
    assert set(found.memory_mib) <= {str(gpu.index) for gpu in MACHINE.gpus}
    assert found.speeds == {}  # all of one model


def known_on(devices: Sequence[Device], machines: Sequence[Machine | None]) -> Known:
    spec = {**run_on_hosts().spec, "devices": msgspec.to_builtins(devices)}
    return known_before(core(spec), machines, PLAN, ())


def of_hosts(*past: Result, plan: Plan = PLAN, **changed: Any) -> Known:
    spec = {**run_on_hosts().spec, **changed}
    return known_before(core(spec), [MACHINE, None], plan, past)


def run_on_hosts(address: str = "10.0.0.2:40001", gpu: int = 0, **changed: Any) -> Result:
    """A run of a GPU of n1 and one of n2."""
    devices = on_hosts(gpu_devices(1), [msgspec.structs.replace(gpu_devices(1)[0], gpu=gpu)])
    whole = run(MACHINE, "vgg16")
    servers = [
        {"host": "n1", "address": "10.0.0.1:40000", "cores": 2},
        {"host": "n2", "address": address, "cores": 2},
    ]
    spec = {**whole.spec, "servers": servers, "devices": msgspec.to_builtins(devices)}
    rows = [msgspec.structs.replace(row, device=one) for row, one in zip(whole.devices, devices, strict=True)]
    return msgspec.structs.replace(whole, spec={**spec, **changed}, devices=tuple(rows))


def test_runs_over_the_same_devices_of_the_same_hosts_count_before_the_plan() -> None:
    past = run_on_hosts(address="10.0.0.2:51007")  # ports are others each time
    expected = there(of_hosts(past).expected)
    assert expected.source == "an earlier run of this job on these hosts"
    assert expected.images_per_sec == there(past.throughput).median
    assert of_hosts(past, backend="cpu").expected is None, "that was on GPUs"
    on_cpu = run_on_hosts(backend="cpu")
    found = of_hosts(on_cpu, backend="cpu")
    assert found == Known(expected=there(found.expected))


@pytest.mark.parametrize(
    "other",
    [
        run_on_hosts(address="10.0.0.3:40001"),
        run_on_hosts(batch_size=32),
    ],
    ids=["another network", "another batch"],
)
def test_a_run_over_other_devices_does_not_count_and_the_plan_is_the_source(other: Result) -> None:
    expected = there(of_hosts(other).expected)
    assert expected.source == "predicted by the plan"
    assert of_hosts(other, plan=UNPREDICTED).unexpected == (
        "there is no earlier run of this job on these devices of these hosts, and the plan predicts no speed"
    )


def test_what_is_wrong_with_the_ports_of_a_host_is_known_by_its_rank() -> None:
    def with_port(rate: float, max_rate: float | None = None) -> Machine:
        port = NicPort(
            index=1, rdma_device="mlx5_0", state="ACTIVE", rate_gbit_per_s=rate, max_rate_gbit_per_s=max_rate
        )
        nic = Nic(index=0, name="mlx5_0", pci_address="0000:05:00.0", ports=(port,))
        return msgspec.structs.replace(MACHINE, nics=(nic,))

    devices = on_hosts(*[gpu_devices(1)] * 4)
    like = [with_port(100), with_port(100)]
    assert known_on(devices, [*like, with_port(100), None]).networks == {}
    slower = known_on(devices, [*like, with_port(25), None]).networks
    assert slower == {2: "its fastest port has 25 Gbit/s, the ports of the others 100"}
    degraded = known_on(devices, [*like, with_port(100, 200), None]).networks
    assert list(degraded) == [2]
    assert "mlx5_0" in degraded[2]
    assert "200" in degraded[2]


def test_gpus_of_several_models_have_speeds_by_runs_of_one_or_by_reference() -> None:
    names = {1: "NVIDIA GeForce GTX 1080 Ti"}
    gpus = [msgspec.structs.replace(gpu, name=names.get(gpu.index, gpu.name)) for gpu in MACHINE.gpus]
    machine = msgspec.structs.replace(MACHINE, gpus=tuple(gpus))
    alone = run(machine, "alexnet", gpus=(0,))
    own = run(machine, "alexnet")
    found = known_before(core(own.spec), [machine], PLAN, [alone], require_workload("alexnet")).speeds
    assert found[0].source.startswith("measured here: a run on one ")
    assert "published" in found[1].source or "datasheet" in found[1].source
    assert found[1].images_per_sec > found[1].low


def test_the_speed_of_a_gpu_alone_is_that_of_the_latest_run_of_the_same_job_on_it(tmp_path: Path) -> None:
    both, alone = run(MACHINE, "vgg16", gpus=(0, 3)), run(MACHINE, "vgg16", gpus=(3,))
    both = msgspec.structs.replace(both, batch_size=BATCH)
    another = msgspec.structs.replace(alone, spec={**alone.spec, "data_format": "NCHW"})
    slower = run(MACHINE, "vgg16", gpus=(3,), slower=1.5)
    history = BoxHistory(tmp_path)
    for number, earlier in enumerate((slower, alone, another, both)):
        run_folder(history.runs / str(number), earlier, float(number), MACHINE)
    found = with_alone(both, MACHINE, (), history)
    assert [row.alone_images_per_sec for row in found.devices] == [None, there(alone.throughput).mean]
    assert found.alone == str(history.runs / "1")
    other_batch = msgspec.structs.replace(both, batch_size=BATCH + 1)
    assert with_alone(other_batch, MACHINE, (), history) == other_batch
