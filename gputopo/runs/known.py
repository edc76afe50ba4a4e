"""What is known before a run and used to judge it: earlier runs, predicted or published speeds.

The expected speed is the speed of earlier runs of the same job on the same GPUs, of this machine or of the
same hosts; else the speed that the plan predicts; else, on one host, published speeds of the same job on the
same number of GPUs of the same model.
"""

import functools
from collections.abc import Mapping, Sequence
from statistics import median, median_low

from gputopo.captures import bundled_names, read_bundled
from gputopo.findings import find_port_faults
from gputopo.prediction import SAME_RUN, paths_of, single_gpu_speeds
from gputopo.reference import expected_gpu, published_figures, published_machines
from gputopo.runs.alone import alone_speed_of
from gputopo.runs.past_runs import MAX_UNCERTAINTY, past_speeds, why_not_of_plan, why_unpredicted
from gputopo.values.machine import Machine
from gputopo.values.run.events import Device, gpu_key
from gputopo.values.run.plan import Plan
from gputopo.values.run.result import Result
from gputopo.values.run.spec import JobSpec, RunSpec
from gputopo.values.run.verdict import Expected, Known
from gputopo.workload import Workload

SAME_JOB = 1.10  # factor for the same job on the same model: machines and versions of TensorFlow differ
# Maximum difference of the images/sec of two runs of one job on the CPU. Not measured; chosen because other
# programs use the CPU too.
SAME_CPU_RUN = 0.10
# The latest runs of one job. Not measured; chosen because one disturbed run does not move their median.
MAX_RUNS = 5


def known_before(
    job: RunSpec,
    machines: Sequence[Machine | None],
    plan: Plan,
    past: Sequence[Result],
    workload: Workload | None = None,
) -> Known:
    """Return what is known of a run on one host or several.

    `machines`: by rank; None: unknown. `past`: runs of this machine, or of this host with others, latest
    first. `workload`: the costs of the model; None if unknown.
    """
    several = len(machines) > 1
    past = () if job.asked.get("no_history") else past
    expected = _of_earlier_runs(job, past, "these hosts" if several else "this machine")
    if job.backend == "cpu":  # the speed of CPU devices is neither predicted nor published
        return Known(expected=expected)
    expected = expected or _of_the_plan(job, plan)
    unexpected = "there is no earlier run of this job on "
    unexpected += "these devices of these hosts, and " if several else "this machine, "
    unexpected += why_unpredicted(job) or "the plan predicts no speed"
    if not several:
        expected = expected or _of_others(job)
        unexpected += ", and no figure of it was published"
    sharing: dict[int, tuple[int, ...]] = {}
    memory_mib: dict[str, int] = {}
    for rank, machine in enumerate(machines):
        if machine is not None:
            sharing |= _sharing([device for device in job.devices if device.rank == rank], machine)
            totals = {gpu_key(rank, gpu.index): gpu.memory_mib.total for gpu in machine.gpus}
            memory_mib |= {key: total for key, total in totals.items() if total is not None}
    return Known(
        expected=expected,
        unexpected=None if expected else unexpected,
        speeds={} if several or machines[0] is None else _speeds(job, machines[0], past, workload),
        sharing=sharing,
        memory_mib=memory_mib,
        networks=_networks(machines) if several else {},
    )


def _networks(machines: Sequence[Machine | None]) -> dict[int, str]:
    """Return by rank the port faults that only this host has, and whether its port is slower than others'."""
    says: dict[int, list[str]] = {}
    rates: dict[int, float] = {}  # of the fastest port
    for rank, machine in enumerate(machines):
        if machine is not None:
            says[rank] = [finding.says for finding in find_port_faults(machine)]
            up = [port for nic in machine.nics for port in nic.ports or () if port.up]
            rates[rank] = max((port.rate_gbit_per_s or 0.0 for port in up), default=0.0)
    networks = {}
    for rank in says:
        others = [other for other in says if other != rank]
        faults = [fault for fault in says[rank] if not any(fault in says[other] for other in others)]
        usual = median_low([rates[other] for other in others]) if others else 0.0
        if 0 < rates[rank] < usual:
            faults.append(f"its fastest port has {rates[rank]:g} Gbit/s, the ports of the others {usual:g}")
        if faults:
            networks[rank] = "; ".join(faults)
    return networks


def _of_earlier_runs(job: RunSpec, past: Sequence[Result], where: str) -> Expected | None:
    rates = [
        run.throughput.median
        for run in past
        if run.throughput is not None and _counts(run) and _speed_of(run.job) == _speed_of(job)
    ][:MAX_RUNS]
    if not rates:
        return None
    rate = median(rates)
    runs = "an earlier run" if len(rates) == 1 else f"the median of {len(rates)} earlier runs"
    differ = SAME_CPU_RUN if job.backend == "cpu" else SAME_RUN
    low, high = min(*rates, (1 - differ) * rate), max(*rates, (1 + differ) * rate)
    return Expected(images_per_sec=rate, low=low, high=high, source=f"{runs} of this job on {where}")


def _counts(result: Result) -> bool:
    """Return whether a run shows what this machine can do: complete, undisturbed and not slow."""
    speed, host = result.throughput, result.host_load
    if result.status != "complete" or speed is None or not speed.median > 0 or result.is_slow:
        return False
    quiet = host is None or host.busy is None
    return quiet and not result.spec.get("drills") and speed.uncertainty <= MAX_UNCERTAINTY * speed.mean


def _speed_of(job: JobSpec) -> tuple[object, ...] | None:
    """Return the parts of a job that decide the speed of its steps; None for other training cores."""
    if not isinstance(job, RunSpec):
        return None
    servers = list(enumerate(job.servers))
    return (
        *(job.backend, job.rehearsal_of, job.batch_size, job.runtime, job.exchange),
        *(job.variable_update, job.ps_device, job.all_reduce, job.optimization.optimizer),
        alone_speed_of(job),
        [(device.tower, device.gpu) for device in job.devices],
        # Of several hosts: names, addresses on the job's network, and models of the GPUs.
        [(server.host, server.address.rpartition(":")[0] if rank else "") for rank, server in servers],
        [(device.rank, (device.gpu_name or "").removeprefix("NVIDIA ")) for device in job.devices if servers],
    )


def _of_the_plan(job: RunSpec, plan: Plan) -> Expected | None:
    choice = plan.choice
    rate, low, high = choice.images_per_sec, choice.images_per_sec_low, choice.images_per_sec_high
    if rate is None or low is None or high is None or why_not_of_plan(job, plan, job.batches):
        return None
    return Expected(images_per_sec=rate, low=low, high=high, source="predicted by the plan")


def _of_others(job: RunSpec) -> Expected | None:
    if job.drills or job.task != "train" or not job.data.is_free or len(set(job.batches)) != 1:
        return None
    names = [_model(device.gpu_name) for device in job.devices]
    of_job = (job.model, job.batches[0], job.precision.compute, job.precision.xla)
    mode = (job.variable_update, job.all_reduce)
    rows = [
        row
        for row in published_figures()
        if not row.is_suspect and row.data == "synthetic"
        if (row.model, row.batch_per_gpu, row.precision, row.xla) == of_job
        if (row.variable_update, row.all_reduce) == mode
        if [_model(_gpu_names(row.machine).get(gpu)) for gpu in row.gpus] == names
    ]
    if None in names or not rows:
        return None
    rates = [row.images_per_sec for row in rows]
    sources = ", ".join(dict.fromkeys(row.source for row in rows))
    return Expected(
        images_per_sec=median(rates),
        low=min(rates) / SAME_JOB,
        high=max(rates) * SAME_JOB,
        source=f"published for the same GPUs ({sources})",
    )


@functools.cache
def _gpu_names(machine: str) -> Mapping[int, str | None]:
    """Return the GPU models of a published machine."""
    if machine in bundled_names():
        return {gpu.index: gpu.name for gpu in read_bundled(machine).gpus}
    published_machine = published_machines()[machine]
    return dict.fromkeys(range(published_machine.count), published_machine.gpu)


def _model(name: str | None) -> str | None:
    gpu = expected_gpu(name)
    return None if gpu is None else gpu.name


def _speeds(
    job: RunSpec, machine: Machine, past: Sequence[Result], workload: Workload | None
) -> dict[int, Expected]:
    """Return the images/sec of each device by itself, by tower, if the devices are of several models."""
    if workload is None or len({device.gpu_name for device in job.devices}) < 2:
        return {}
    figures = past_speeds(filter(_counts, past))
    expected = {}
    for device, batch in zip(job.devices, job.batches, strict=True):
        speeds = single_gpu_speeds(machine, workload, batch, job.precision.compute, history=figures)
        speed = None if device.gpu is None else speeds.get(device.gpu)
        if speed is not None:
            expected[device.tower] = Expected(
                images_per_sec=speed.images_per_sec, low=speed.low, high=speed.high, source=speed.source
            )
    return expected


def _sharing(devices: Sequence[Device], machine: Machine) -> dict[int, tuple[int, ...]]:
    """Return, by tower, the towers whose GPUs share its link to the host, if there are any."""
    uplinks = paths_of(machine).uplinks
    sharing = {}
    for device in devices:
        others = tuple(
            other.tower
            for other in devices
            if other != device and any({device.gpu, other.gpu} <= uplink.gpus for uplink in uplinks)
        )
        if others:
            sharing[device.tower] = others
    return sharing
