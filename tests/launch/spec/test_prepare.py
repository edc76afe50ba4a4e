from dataclasses import replace
from typing import Any

import msgspec
import pytest

from gputopo.captures import read_bundled
from gputopo.launch import Site, Target
from gputopo.launch.spec import reduced_by_strategy, spec_of, without_nccl
from gputopo.planner import Request, cpu_plan
from gputopo.planner import plan as make_plan
from gputopo.values.errors import UsageError
from gputopo.values.machine import Machine
from gputopo.values.run.drill import read_drills
from gputopo.values.run.plan import Candidate, Plan
from gputopo.values.run.spec import Data, Exchange, Lifecycle, Precision, RunSpec
from gputopo.workload import require_workload
from tests import there
from tests.launch.specs import machine, plan_for


def spec(gpus: tuple[int, ...] = (), ps: str | None = "cpu", backend: str = "gpu", **options: Any) -> RunSpec:
    devices, rehearsal_of = options.pop("cpu_devices", 2), options.pop("rehearsal_of", None)
    plan = plan_for(gpus, ps) if gpus else cpu_plan(Request(model="alexnet", ps=ps or "auto"), devices)
    site, why = Site(machine(), rehearsal_of=rehearsal_of), "No NVIDIA device"
    target = Target(backend, site, plan, why, devices)  # type: ignore[arg-type]
    return spec_of(target, "alexnet", **options)


def on_gpus(plan: Plan, model: str = "alexnet", of: Machine | None = None, **options: Any) -> RunSpec:
    return spec_of(Target("gpu", Site(of or machine()), plan), model, **options)


def hops(one: RunSpec) -> list[str | None]:
    return [device.hop_to_variables for device in one.devices]


def test_towers_are_the_gpus_of_the_plan_in_its_order() -> None:
    made = spec((3, 1), "gpu:1")
    assert [(device.device, device.gpu, device.gpu_name) for device in made.devices] == [
        ("/GPU:0", 3, "Card 3"),
        ("/GPU:1", 1, "Card 1"),
    ]
    assert made.ps_device == "/GPU:1"
    assert made.says == ("Training on 2 GPUs: 3, 1.",)


def test_variables_on_the_cpu_are_the_hosts_and_own_copies_are_nowhere() -> None:
    assert hops(spec((0, 1), "cpu")) == ["host", "host"]
    assert spec((0, 1), "cpu").ps_device == "/CPU:0"
    own = on_gpus(plan_for((0, 1), None, variable_update="replicated", all_reduce="copy"))
    assert hops(own) == [None, None]
    assert (own.ps_device, own.variable_update, own.all_reduce) == (None, "replicated", "copy")


def test_a_strategy_with_copies_on_every_device_reduces_by_its_own_method() -> None:
    plan = reduced_by_strategy(cpu_plan(Request(model="alexnet", variable_update="replicated")))
    assert {one.all_reduce for one in (plan.choice, *plan.candidates)} == {None}
    made = spec_of(Target("cpu", Site(machine()), plan), "alexnet", strategy="mirrored")
    assert (made.variable_update, made.ps_device, made.all_reduce) == ("replicated", None, None)
    assert hops(made) == [None, None]


def test_variables_on_a_gpu_that_is_not_chosen_are_refused() -> None:
    with pytest.raises(UsageError, match="cannot be on GPU 2: the run uses GPUs 0, 1"):
        spec((0, 1), "gpu:2")


def test_a_rehearsal_puts_cpu_devices_in_the_place_of_the_gpus_and_reports_it() -> None:
    made = spec((2, 3), "gpu:3", backend="cpu", rehearsal_of="7gforce")
    assert [(device.device, device.gpu) for device in made.devices] == [("/CPU:0", 2), ("/CPU:1", 3)]
    assert made.ps_device == "/CPU:1"
    assert hops(made) == ["NV2", "local"]
    assert made.rehearsal_of == "7gforce"
    assert made.says == ("Rehearsal of 7gforce (GPUs 2, 3) on 2 CPU devices: the speeds are of this CPU.",)


def test_without_gpus_there_are_two_cpu_devices_and_the_first_line_states_it() -> None:
    made = spec(backend="cpu")
    assert [device.device for device in made.devices] == ["/CPU:0", "/CPU:1"]
    assert [device.gpu for device in made.devices] == [None, None]
    assert made.says == ("No NVIDIA device: training on 2 logical CPU devices.",)
    assert made.ps_device == "/CPU:0"
    assert hops(made) == ["local", "host"]


def test_counting_ends_on_cpu_devices_when_the_speed_is_known_and_on_gpus_by_count() -> None:
    load = require_workload("alexnet")
    on_cpu = spec(backend="cpu")
    assert (on_cpu.num_batches, on_cpu.batch_limit) == (None, None)
    assert (on_cpu.time_budget_s, on_cpu.max_error) == (20.0, 0.01)
    assert (on_cpu.batch_size, on_cpu.num_warmup_batches, on_cpu.data_format) == (load.cpu_batch, 3, "NHWC")
    on_gpu = spec((0, 1))
    assert (on_gpu.num_batches, on_gpu.time_budget_s, on_gpu.max_error) == (100, None, None)
    assert (on_gpu.batch_size, on_gpu.num_warmup_batches, on_gpu.data_format) == (load.gpu_batch, 10, "NCHW")
    assert on_gpus(plan_for((0, 1), "cpu"), "keras:ResNet50").batch_size == 32
    assert on_cpu.min_warmup_s == on_gpu.min_warmup_s == 1.0


def test_a_number_of_steps_and_checkpoints_make_a_run_exact_and_a_number_of_warm_up_steps_fixes_it() -> None:
    counted = spec(backend="cpu", num_batches=7)
    assert (counted.batch_limit, counted.max_error, counted.min_warmup_s) == (7, None, 0.0)
    saved = spec(backend="cpu", lifecycle=Lifecycle(checkpoints="/c"))
    assert (saved.batch_limit, saved.max_error, saved.min_warmup_s) == (50, None, 0.0)
    assert spec(backend="cpu", num_warmup_batches=5).min_warmup_s is None
    assert spec((0, 1), num_warmup_batches=5).min_warmup_s is None


def test_an_evaluation_of_a_folder_goes_over_all_of_it_unless_requested_otherwise() -> None:
    judge: dict[str, Any] = {"task": "eval", "lifecycle": Lifecycle(checkpoints="/c")}
    folder = Data(folder="/data")
    whole = spec((0, 1), **judge, data=folder)
    assert (whole.num_batches, whole.time_budget_s, whole.batch_limit) == (None, None, None)
    assert spec((0, 1), **judge, data=folder, num_batches=7).batch_limit == 7
    assert spec((0, 1), **judge).batch_limit is not None, "examples that are made have no end"


def test_what_was_asked_for_wins() -> None:
    asked: dict[str, Any] = {
        "batch_size": 3,
        "num_batches": 7,
        "num_warmup_batches": 0,
        "data_format": "NCHW",
    }
    asked |= {"grad_reduce": "sum", "learning_rate": 0.5, "seed": 9}
    made = spec(backend="cpu", **asked)
    assert {name: getattr(made, name) for name in asked} == asked


def test_xla_on_cpu_devices_is_said_to_be_slower_before_the_run_compiles() -> None:
    compiled = Precision(xla=True)
    says = spec(backend="cpu", precision=compiled).says
    assert says[1].startswith("--xla is usually slower on CPU devices")
    assert not any(
        "--xla" in one for one in (*spec(backend="cpu").says, *spec((0, 1), precision=compiled).says)
    )


def test_a_drill_is_the_first_thing_that_is_said_of_a_run() -> None:
    drills = read_drills("--drill", ["slow-gpu=3:0.85@30"])
    made = spec((2, 3), "gpu:3", drills=drills)
    assert made.says[0].startswith(
        "DRILL (a fault injected on purpose): GPU 3 computes at 85% of its own speed"
    )
    assert spec(backend="cpu", drills=read_drills("--drill", ["slow-gpu=1:0.85"])).says[0].count("device 1")


def test_a_drill_of_a_device_that_does_not_train_is_refused() -> None:
    drills = read_drills("--drill", ["lost-gpu=4@9"])
    with pytest.raises(UsageError, match=r"lost-gpu=4@9 is for GPU 4, but this run has 2, 3$"):
        spec((2, 3), drills=drills)


def test_the_hierarchical_reduction_gets_groups_of_close_gpus_on_gpus_only() -> None:
    plan = plan_for((0, 1, 2, 3), None, variable_update="replicated", all_reduce="hierarchical")
    made = on_gpus(plan)
    assert sorted(map(sorted, made.exchange.groups)) == [[0, 1], [2, 3]]
    copied = plan_for((0, 1, 2, 3), None, variable_update="replicated", all_reduce="copy")
    assert on_gpus(copied).exchange.groups == ()


def test_the_rate_of_a_residual_network_follows_the_batch_of_all_devices() -> None:
    plan = plan_for((0, 1), "cpu")
    made = on_gpus(plan, "resnet50", batch_size=64)
    assert made.learning_rate == pytest.approx(0.128 * 128 / 256)
    doubled = on_gpus(plan, "resnet50", asked={"scale_learning_rate": True}, learning_rate=0.1)
    assert doubled.learning_rate == pytest.approx(0.2)
    for update in ("replicated", "parameter_server"):
        of_update = plan_for((0, 1), None if update == "replicated" else "cpu", variable_update=update)
        added = on_gpus(of_update, "resnet50", batch_size=64, grad_reduce="sum")
        assert added.variable_update == update
        assert added.learning_rate == pytest.approx(0.128 * 128 / 256 / 2)


def planned(batch_sizes: tuple[int, ...]) -> Plan:
    return plan_for((0, 1), "cpu", batch_sizes=batch_sizes)


def test_batches_may_differ_by_device_and_the_rate_is_that_of_all_examples_together() -> None:
    made = on_gpus(planned(()), "resnet50", batch_size=(60, 68))
    assert (made.batches, made.joint_batch) == ((60, 68), 128)
    assert made.learning_rate == on_gpus(planned(()), "resnet50", batch_size=64).learning_rate
    assert on_gpus(planned(()), batch_size=(64, 64)).batch_size == 64
    with pytest.raises(UsageError, match="--batch-size has 3 numbers for 2 devices"):
        on_gpus(planned(()), batch_size=(1, 2, 3))


def test_auto_takes_the_proportions_of_the_plan_and_the_examples_of_equal_batches() -> None:
    default = require_workload("alexnet")
    auto: dict[str, Any] = {"asked": {"batch_size": "auto"}}
    made = on_gpus(planned((100, 300)), **auto)
    assert made.batches == (default.gpu_batch // 2, default.gpu_batch * 3 // 2)
    assert "in proportion to the speed" in made.says[-1]
    rehearsed = spec_of(Target("cpu", Site(machine()), planned((100, 300))), "alexnet", **auto)
    assert rehearsed.batches == (default.cpu_batch // 2, default.cpu_batch * 3 // 2)
    equal = on_gpus(planned(()), **auto)
    assert equal.batch_size == default.gpu_batch
    assert equal.says[-1] == (
        f"--batch-size auto: {default.gpu_batch} on each device, because their speeds are equal or unknown."
    )


DGX = read_bundled("dgx1-p100")


def by_nccl(**asked: Any) -> tuple[Target, RunSpec]:
    """A run of alexnet on all eight GPUs of a DGX-1, whose plan chooses NCCL."""
    target = Target("gpu", Site(DGX), make_plan(DGX, Request(model="alexnet")))
    made = spec_of(target, "alexnet", asked, batch_size=64)
    assert made.all_reduce == "nccl"
    return target, made


def test_without_nccl_the_plans_best_other_reduction_trains_on_the_same_devices() -> None:
    target, made = by_nccl()
    planned, choice, instead = there(without_nccl(target, made))
    reductions = (one for one in target.plan.candidates if one.all_reduce not in (None, "nccl"))
    assert (planned, choice) == (target.plan.choice, next(reductions))
    assert choice.images_per_sec
    assert msgspec.structs.replace(instead, all_reduce="nccl", exchange=made.exchange) == made
    assert target.environment({}, instead) == target.environment({}, made)


def test_nccl_adds_small_gradients_together_unless_it_is_asked_otherwise() -> None:
    def small(**asked: str) -> int:
        exchange = Exchange(small_bytes=int(asked.get("agg_small_grads_max_bytes", 0)))
        return spec_of(by_nccl()[0], "alexnet", asked, exchange=exchange).exchange.small_bytes

    target, made = by_nccl()
    assert small() == made.exchange.small_bytes == 2**20
    assert small(agg_small_grads_max_bytes="9") == 9
    assert there(without_nccl(target, made)).spec.exchange.small_bytes == 0


def test_a_plan_that_lists_no_other_reduction_of_its_gpus_falls_back_to_copies() -> None:
    target, made = by_nccl()
    alone = msgspec.structs.replace(target.plan, candidates=(target.plan.choice,))
    _, choice, instead = there(without_nccl(replace(target, plan=alone), made))
    assert (choice.gpus, choice.all_reduce, instead.all_reduce) == (alone.choice.gpus, "copy", "copy")


def test_towers_keep_their_gpus_where_another_candidate_has_them_in_another_order() -> None:
    nccl = Candidate(gpus=(1, 0), variable_update="replicated", all_reduce="nccl", batch_sizes=(6, 2))
    turned = Candidate(gpus=(0, 1), variable_update="replicated", all_reduce="ring", batch_sizes=(2, 6))
    target = Target("gpu", Site(machine()), Plan(choice=nccl, candidates=(nccl, turned)))
    choice = there(without_nccl(target, spec_of(target, "alexnet"))).choice
    assert (choice.all_reduce, choice.gpus, choice.batch_sizes) == ("ring", (1, 0), (6, 2))


def test_nccl_that_was_asked_for_and_other_reductions_have_no_fallback() -> None:
    assert without_nccl(*by_nccl(all_reduce="nccl")) is None
    plan = plan_for((0, 1), None, variable_update="replicated", all_reduce="copy")
    copied = Target("gpu", Site(machine()), plan)
    assert without_nccl(copied, spec_of(copied, "alexnet")) is None
