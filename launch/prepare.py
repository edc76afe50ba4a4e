"""From a plan to the frozen spec of a run. Pure: nothing here asks the machine, a file or the clock."""

import msgspec

from gputopo import workload
from gputopo.errors import UsageError
from gputopo.events import Device
from gputopo.launch.spec import Backend, DataFormat, GradReduce, RunSpec
from gputopo.machine import Gpu, Machine
from gputopo.plan import Candidate, Plan, VariableUpdate

# On CPU devices the whole command shall end within two minutes on two cores: starting TensorFlow, building
# and tracing take about half of that at most, so the counted steps get 45 s and the warm-up few steps.
CPU_TIME_BUDGET_S = 45.0
CPU_MAX_BATCHES = 50
CPU_WARMUP_BATCHES = 3
CPU_DEVICES = 2
MOST_CPU_DEVICES = 64  # towers are built one by one; beyond this a typing mistake is more likely than a wish
# As tf_cnn_benchmarks: --num_batches 100 and a warm-up of 10.
GPU_BATCHES = 100
GPU_WARMUP_BATCHES = 10
_UPDATE_OF_AUTO = {"auto": "parameter_server"}
_DEFAULT_FORMAT: dict[Backend, DataFormat] = {"cpu": "NHWC", "gpu": "NCHW"}  # what is fast on each


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a user asked of a run beside the plan. None: the default of the backend.

    `batch_size` is per device. `add_work` maps a tower to forward passes that it makes more in each step.
    `cpu_devices` counts only without a machine to plan for. `rehearsal_of`: see `RunSpec`.
    `why_cpu`: why the run is on CPU devices, a clause such as "No NVIDIA device".
    """

    model: str
    backend: Backend
    batch_size: int | None = None
    num_batches: int | None = None
    num_warmup_batches: int | None = None
    data_format: DataFormat | None = None
    grad_reduce: GradReduce = "mean"
    learning_rate: float | None = None
    seed: int | None = None
    add_work: dict[int, int] = {}
    cpu_devices: int = CPU_DEVICES
    rehearsal_of: str | None = None
    why_cpu: str = "No NVIDIA device"


def cpu_plan(
    model: str | None,
    *,
    devices: int = CPU_DEVICES,
    ps: str = "auto",
    variable_update: str = "auto",
) -> Plan:
    """Give the plan of a machine without GPUs: no GPU chosen, variables where the options say.

    `ps` is auto (the same as cpu), cpu or gpu:N, which stands for the device of tower N. `variable_update`
    is auto (the same as parameter_server) or a VariableUpdate; both were checked before.
    Raises UsageError for a tower that there is not, or a place given for copies that have none.
    """
    if not 1 <= devices <= MOST_CPU_DEVICES:
        raise UsageError(
            f"--num-gpus cannot be {devices} without GPUs", f"ask for 1 to {MOST_CPU_DEVICES} CPU devices"
        )
    update = msgspec.convert(_UPDATE_OF_AUTO.get(variable_update, variable_update), VariableUpdate)
    reasons = (f"no GPU to plan for: {counted_devices(devices)}",)
    if update != "parameter_server":
        if ps != "auto":
            raise UsageError(
                f"--ps {ps} does not go with --variable-update {update}: every device has its own copy",
                "leave --ps out, or use --variable-update parameter_server",
            )
        choice = Candidate(
            gpus=(),
            variable_update=update,
            all_reduce="copy" if update == "replicated" else None,
            reasons=reasons,
        )
    else:
        place = "cpu" if ps == "auto" else ps
        if place != "cpu" and _number(place) >= devices:
            raise UsageError(
                f"--ps {place} names a device that is not there: {counted_devices(devices)}",
                f"give gpu:0 to gpu:{devices - 1}, or cpu",
            )
        choice = Candidate(gpus=(), variable_update=update, ps_device=place, reasons=reasons)
    return Plan(
        choice=choice,
        candidates=(choice,),
        environment={"CUDA_VISIBLE_DEVICES": "-1"},
        model=model,
        source="cpu",
    )


def spec_of(plan: Plan, machine: Machine | None, options: RunOptions) -> RunSpec:
    """Turn a plan into what to run.

    On the GPU backend tower i is `/GPU:i`, the i-th of the plan's GPUs, which is all that the worker sees.
    On the CPU backend it is `/CPU:i`, standing for that GPU where the plan has GPUs (a rehearsal).
    `machine` is the one that was planned for, None where there are no GPUs.
    Raises UsageError for a number that cannot be, a model that is not known, variables on a GPU that is not
    in the plan, or added work for a tower that is not there.
    """
    load = workload.require(options.model)
    choice = plan.choice
    count = len(choice.gpus) or options.cpu_devices
    devices = tuple(_device(tower, choice, machine, options.backend) for tower in range(count))
    _check(options, count)
    if options.grad_reduce == "sum" and choice.variable_update == "independent":
        raise UsageError(
            "--grad-reduce sum does not go with --variable-update independent: nothing is reduced",
            "leave --grad-reduce out, or use --variable-update replicated",
        )
    on_cpu = options.backend == "cpu"
    fixed = not on_cpu or options.num_batches is not None
    default_batch = _cpu_batch(load.cpu_batch, count) if on_cpu else load.gpu_batch
    default_warmup = CPU_WARMUP_BATCHES if on_cpu else GPU_WARMUP_BATCHES
    spec = RunSpec(
        model=options.model,
        devices=devices,
        backend=options.backend,
        variable_update=choice.variable_update,
        ps_device=_ps_device(choice, options.backend),
        all_reduce=choice.all_reduce,
        grad_reduce=options.grad_reduce,
        batch_size=_or(options.batch_size, default_batch),
        num_batches=_or(options.num_batches, GPU_BATCHES) if fixed else None,
        time_budget_s=None if fixed else CPU_TIME_BUDGET_S,
        max_batches=_or(options.num_batches, GPU_BATCHES) if fixed else CPU_MAX_BATCHES,
        num_warmup_batches=_or(options.num_warmup_batches, default_warmup),
        data_format=options.data_format or _DEFAULT_FORMAT[options.backend],
        extra_forward=options.add_work,
        max_clocks_mhz={} if on_cpu else _max_clocks(machine, choice.gpus),
        rehearsal_of=options.rehearsal_of,
        says=says(choice.gpus, count, options),
    )
    asked = {"learning_rate": options.learning_rate, "seed": options.seed}
    return msgspec.structs.replace(spec, **{name: it for name, it in asked.items() if it is not None})


def says(gpus: tuple[int, ...], count: int, options: RunOptions) -> tuple[str, ...]:
    """Give what every output of the run has to say about where it trains."""
    if options.rehearsal_of is not None:
        listed = f"GPU{'s' if len(gpus) > 1 else ''} {', '.join(map(str, gpus))}"
        on = f"{count} CPU device{'s' if count > 1 else ''}"
        where = f"Rehearsal of {options.rehearsal_of} ({listed}) on {on}: speeds are this CPU's."
    elif options.backend == "cpu":
        where = f"{options.why_cpu}: training on {counted_devices(count)}."
    else:
        where = f"Training on {count} GPU{'s' if count > 1 else ''}: {', '.join(map(str, gpus))}."
    return (where, *(_work_said(tower, passes) for tower, passes in sorted(options.add_work.items())))


def counted_devices(count: int) -> str:
    """Give `1 logical CPU device` or `2 logical CPU devices`."""
    return f"{count} logical CPU device{'' if count == 1 else 's'}"


def _work_said(tower: int, passes: int) -> str:
    return (
        f"Tower {tower} makes {passes} forward pass{'' if passes == 1 else 'es'} more in each step, as asked."
    )


def _device(tower: int, choice: Candidate, machine: Machine | None, backend: Backend) -> Device:
    kind = "GPU" if backend == "gpu" else "CPU"
    index = choice.gpus[tower] if choice.gpus else None
    gpu = _gpu(machine, index)
    return Device(
        tower=tower,
        device=f"/{kind}:{tower}",
        gpu=index,
        gpu_name=None if gpu is None else gpu.name,
        hop_to_variables=_hop(tower, choice, machine),
    )


def _hop(tower: int, choice: Candidate, machine: Machine | None) -> str | None:
    """How far the variables are from a tower: the planned machine's links, also in a rehearsal."""
    if choice.ps_device is None:
        return None
    if not choice.gpus:
        return "local" if tower == (0 if choice.ps_device == "cpu" else _number(choice.ps_device)) else "host"
    if choice.ps_device == "cpu":
        return "host"
    own, holder = choice.gpus[tower], _number(choice.ps_device)
    if own == holder:
        return "local"
    link = None if machine is None else machine.link(own, holder)
    if link is None:
        return "unknown"
    if link.nvlinks:
        return f"NV{link.nvlinks}"
    return "unknown" if link.hop is None else link.hop.value


def _ps_device(choice: Candidate, backend: Backend) -> str | None:
    if choice.ps_device is None:
        return None
    if choice.ps_device == "cpu":
        return "/CPU:0"
    number = _number(choice.ps_device)
    if not choice.gpus:
        return f"/CPU:{number}"
    if number not in choice.gpus:
        raise UsageError(
            f"the variables cannot be on GPU {number}: the run takes GPUs {', '.join(map(str, choice.gpus))}",
            "give --ps one of these, or add the GPU to --gpus",
        )
    return f"/{'GPU' if backend == 'gpu' else 'CPU'}:{choice.gpus.index(number)}"


def _check(options: RunOptions, count: int) -> None:
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
        gpu = _gpu(machine, index)
        if gpu is not None:
            clocks = {"graphics": gpu.clocks_mhz.graphics.max, "memory": gpu.clocks_mhz.memory.max}
            found[index] = {name: mhz for name, mhz in clocks.items() if mhz is not None}
    return found


def _gpu(machine: Machine | None, index: int | None) -> Gpu | None:
    return None if machine is None else next((gpu for gpu in machine.gpus if gpu.index == index), None)


def _number(place: str) -> int:
    return int(place.removeprefix("gpu:"))


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
