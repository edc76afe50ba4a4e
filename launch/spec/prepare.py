"""From a plan to the frozen spec of a run. Pure: nothing here asks the machine, a file or the clock."""

from typing import Any

import msgspec

from gputopo.launch.spec import model_names
from gputopo.launch.spec.cpu_plan import CPU_DEVICES, counted_devices
from gputopo.launch.spec.model_data import data_of, model_for
from gputopo.launch.spec.model_schedules import Recipe, model_recipe
from gputopo.launch.spec.rules.checks import check
from gputopo.launch.spec.run_spec import (
    Backend,
    Data,
    DataFormat,
    Exchange,
    GradReduce,
    Lifecycle,
    Method,
    Optimization,
    Precision,
    RunSpec,
    Runtime,
    Task,
)
from gputopo.launch.spec.tower_devices import find_gpu, ps_device, tower_device
from gputopo.planner.request import SPREAD
from gputopo.topology.reduction_groups import reduction_groups
from gputopo.values.errors import UsageError
from gputopo.values.machine import Machine
from gputopo.values.plan import Candidate, Plan

# On CPU devices the whole command shall end within two minutes on two cores: starting TensorFlow, building
# and tracing take about half of that at most, so the counted steps get 45 s and the warm-up few steps.
CPU_TIME_BUDGET_S = 45.0
CPU_MAX_BATCHES = 50
CPU_WARMUP_BATCHES = 3
# As tf_cnn_benchmarks: --num_batches 100 and a warm-up of 10.
GPU_BATCHES = 100
GPU_WARMUP_BATCHES = 10
_DEFAULT_FORMAT: dict[Backend, DataFormat] = {"cpu": "NHWC", "gpu": "NCHW"}  # what is fast on each


_DOES: dict[Task, str] = {
    "train": "training",
    "forward": "forward passes",
    "eval": "evaluating",
    "input": "measuring the input",
}


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a user asked of a run beside the plan. None: the default of the backend, or of the model.

    `batch_size` is per device. `add_work` maps a tower to forward passes that it makes more in each step.
    `scale_learning_rate`: times the number of devices. `model_schedule`: the learning rate falls as the
    model's authors let it. `cpu_devices` counts only without a machine to plan
    for. `rehearsal_of`: see `RunSpec`. `why_cpu`: why the run is on CPU devices, a clause such as "No NVIDIA
    device". `asked`: the options as they were typed, for the result.
    """

    model: str
    backend: Backend
    data_name: str | None = None
    task: Task = "train"
    method: Method | None = None
    strategy: str | None = None
    batch_size: int | None = None
    num_batches: int | None = None
    num_warmup_batches: int | None = None
    detect_warmup: bool = False
    data_format: DataFormat | None = None
    grad_reduce: GradReduce = "mean"
    learning_rate: float | None = None
    scale_learning_rate: bool = False
    model_schedule: bool = False
    seed: int | None = None
    optimization: Optimization = Optimization()
    precision: Precision = Precision()
    exchange: Exchange = Exchange()
    data: Data = Data()
    lifecycle: Lifecycle = Lifecycle()
    runtime: Runtime = Runtime()
    add_work: dict[int, int] = {}
    cpu_devices: int = CPU_DEVICES
    rehearsal_of: str | None = None
    why_cpu: str = "No NVIDIA device"
    asked: dict[str, Any] = {}


def reduced_by_strategy(plan: Plan) -> Plan:
    """Give a plan of copies for a strategy of tf.distribute, which adds up gradients in a way of its own."""

    def without(candidate: Candidate) -> Candidate:
        return msgspec.structs.replace(candidate, all_reduce=None)

    candidates = tuple(map(without, plan.candidates))
    return msgspec.structs.replace(plan, choice=without(plan.choice), candidates=candidates)


def spec_of(plan: Plan, machine: Machine | None, options: RunOptions) -> RunSpec:
    """Turn a plan into what to run.

    On the GPU backend tower i is `/GPU:i`, the i-th of the plan's GPUs, which is all that the worker sees.
    On the CPU backend it is `/CPU:i`, standing for that GPU where the plan has GPUs (a rehearsal).
    `machine` is the one that was planned for, None where there are no GPUs.
    Raises UsageError for a number that cannot be, a model that is not known, variables on a GPU that is not
    in the plan, added work for a tower that is not there, or options that do not go together.
    """
    choice = plan.choice
    model = model_for(options.model, options.data_name)
    count = len(choice.gpus) or options.cpu_devices
    _check_numbers(options, count)
    steps = _steps(options, model, count)
    recipe = _recipe(options, plan, model, steps["batch_size"], count)
    spec = RunSpec(
        model=model,
        devices=tuple(tower_device(tower, choice, machine, options.backend) for tower in range(count)),
        backend=options.backend,
        task=options.task,
        method=options.method,
        strategy=options.strategy,
        variable_update=choice.variable_update,
        ps_device=ps_device(choice, options.backend),
        all_reduce=choice.all_reduce,
        grad_reduce=options.grad_reduce,
        **steps,
        learning_rate=recipe.learning_rate,
        data_format=options.data_format or _DEFAULT_FORMAT[options.backend],
        optimization=msgspec.structs.replace(options.optimization, schedule=recipe.schedule),
        precision=options.precision,
        exchange=_exchange(plan, machine, options),
        data=_data(options, model),
        lifecycle=options.lifecycle,
        runtime=options.runtime,
        extra_forward=options.add_work,
        max_clocks_mhz={} if options.backend == "cpu" else _max_clocks(machine, choice.gpus),
        rehearsal_of=options.rehearsal_of,
        asked=options.asked,
        versions=_driver_versions(machine, options),
        says=says(choice.gpus, count, options),
    )
    if options.seed is not None:
        spec = msgspec.structs.replace(spec, seed=options.seed)
    check(spec)
    return spec


def says(gpus: tuple[int, ...], count: int, options: RunOptions) -> tuple[str, ...]:
    """Give what every output has to say: where it trains, and what makes its steps unlike others."""
    does = _DOES[options.task]
    if options.rehearsal_of is not None:
        listed = f"GPU{'s' if len(gpus) > 1 else ''} {', '.join(map(str, gpus))}"
        on = f"{count} CPU device{'s' if count > 1 else ''}"
        where = f"Rehearsal of {options.rehearsal_of} ({listed}) on {on}: speeds are this CPU's."
    elif options.backend == "cpu":
        where = f"{options.why_cpu}: {does} on {counted_devices(count)}."
    else:
        where = f"{does.capitalize()} on {count} GPU{'s' if count > 1 else ''}: {', '.join(map(str, gpus))}."
    stale = ("Weights and gradients are one step old: --staged-vars.",) if options.exchange.staged else ()
    old = ("Gradients are applied one step late: relaxed consistency.",) if options.exchange.relaxed else ()
    work = (_work_said(tower, passes) for tower, passes in sorted(options.add_work.items()))
    return (where, *work, *stale, *old)


def _work_said(tower: int, passes: int) -> str:
    return (
        f"Tower {tower} makes {passes} forward pass{'' if passes == 1 else 'es'} more in each step, as asked."
    )


def _steps(options: RunOptions, model: str, count: int) -> dict[str, Any]:
    """Give the batch of a device and how many steps there are: by count, by the clock, or all examples."""
    known = model_names.defaults(model)
    on_cpu = options.backend == "cpu"
    fixed = not on_cpu or options.num_batches is not None
    batches = _or(options.num_batches, GPU_BATCHES)
    if options.task == "eval" and options.data.folder is not None and options.num_batches is None:
        counted: dict[str, Any] = {"num_batches": None, "time_budget_s": None, "max_batches": None}
    else:
        counted = {
            "num_batches": batches if fixed else None,
            "time_budget_s": None if fixed else CPU_TIME_BUDGET_S,
            "max_batches": batches if fixed else CPU_MAX_BATCHES,
        }
    return {
        **counted,
        "batch_size": _or(
            options.batch_size, _cpu_batch(known.cpu_batch, count) if on_cpu else known.gpu_batch
        ),
        "num_warmup_batches": _or(
            options.num_warmup_batches, CPU_WARMUP_BATCHES if on_cpu else GPU_WARMUP_BATCHES
        ),
        "detect_warmup": options.detect_warmup,
    }


def _recipe(options: RunOptions, plan: Plan, model: str, batch_size: int, count: int) -> Recipe:
    """Give the rate and the schedule: as asked, where not as the model's authors have them."""
    update = plan.choice.variable_update
    added = count if options.grad_reduce == "sum" and update == "replicated" else 1
    batch = batch_size if update == "independent" else batch_size * count
    own = model_recipe(model, batch, added=added)
    rate = own.learning_rate if options.learning_rate is None else options.learning_rate
    schedule = options.optimization.schedule
    if options.model_schedule:
        warmup = schedule.warmup_steps or own.schedule.warmup_steps
        schedule = msgspec.structs.replace(own.schedule, warmup_steps=warmup)
    return Recipe(rate * count if options.scale_learning_rate else rate, schedule)


def _exchange(plan: Plan, machine: Machine | None, options: RunOptions) -> Exchange:
    choice = plan.choice
    groups = options.exchange.groups
    if choice.all_reduce == "hierarchical" and machine is not None and choice.gpus and not groups:
        groups = reduction_groups(machine, choice.gpus)
    return msgspec.structs.replace(options.exchange, ps_spread=choice.ps_device == SPREAD, groups=groups)


def _data(options: RunOptions, model: str) -> Data:
    """Real examples have the name of the model's data set, which the folder must hold."""
    if options.data.folder is None:
        return options.data
    return msgspec.structs.replace(options.data, name=options.data_name or data_of(model))


def _driver_versions(machine: Machine | None, options: RunOptions) -> dict[str, str]:
    """Give what the machine knows of versions that the worker cannot see."""
    if machine is None or options.backend == "cpu" or machine.driver is None:
        return {}
    known = {"driver": machine.driver.version, "cuda_driver": machine.driver.cuda_version}
    return {name: version for name, version in known.items() if version is not None}


def _check_numbers(options: RunOptions, count: int) -> None:
    least = (
        ("--batch-size", options.batch_size, 1),
        ("--num-batches", options.num_batches, 1),
        ("--num-warmup-batches", options.num_warmup_batches, 0),
        ("--seed", options.seed, 0),
    )
    for name, value, lowest in least:
        if value is not None and value < lowest:
            raise UsageError(f"{name} cannot be {value}", f"give {lowest} or more")
    if options.learning_rate is not None and not 0 <= options.learning_rate < float("inf"):
        raise UsageError(f"--learning-rate cannot be {options.learning_rate}", "give a number such as 0.01")
    for tower, passes in options.add_work.items():
        if not 0 <= tower < count:
            raise UsageError(
                f"--add-work names tower {tower}, this run has {count}", f"give a tower from 0 to {count - 1}"
            )
        if passes < 1:
            raise UsageError(f"--add-work cannot add {passes} passes", "give 1 or more")


def _cpu_batch(batch_of_two: int, count: int) -> int:
    """The default of two devices is shared out among more, so that a step takes no longer."""
    return batch_of_two if count <= CPU_DEVICES else max(1, batch_of_two * CPU_DEVICES // count)


def _max_clocks(machine: Machine | None, gpus: tuple[int, ...]) -> dict[int, dict[str, int]]:
    """Give what NVML says the chosen GPUs' clocks can reach; a clock that it does not say is left out."""
    found = {}
    for index in gpus:
        gpu = find_gpu(machine, index)
        if gpu is not None:
            clocks = {"graphics": gpu.clocks_mhz.graphics.max, "memory": gpu.clocks_mhz.memory.max}
            found[index] = {name: mhz for name, mhz in clocks.items() if mhz is not None}
    return found


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
