"""Where jobs are planned and run (`Site`): on GPUs, or on CPU devices instead.

| the machine                             | a run                                                    |
|-----------------------------------------|----------------------------------------------------------|
| a capture (`--from`)                    | its plan is rehearsed on CPU devices                     |
| an NVIDIA device, no working driver     | HardwareError, exit 3, unless --cpu selects CPU devices  |
| no NVIDIA device, none visible, --cpu   | CPU devices, and every output says so                    |
| GPUs                                    | the plan's GPUs, chosen from CUDA_VISIBLE_DEVICES        |
"""

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from gputopo import planner
from gputopo.findings import driver_broken, install_support, support_of
from gputopo.launch.jobs.before import Before, measured_before
from gputopo.launch.jobs.claims import choose_and_claim
from gputopo.launch.target import Target, TargetSite
from gputopo.planner import Request
from gputopo.report import note
from gputopo.values.errors import GputopoError, HardwareError, InputError, UsageError
from gputopo.values.index_ranges import index_ranges
from gputopo.values.install import install_tensorflow
from gputopo.values.run.plan import CPU_DEVICES, Plan
from gputopo.workload import Workload


@dataclass
class Site(TargetSite):
    """Where jobs are planned and run: this machine, another host's machine, or a captured one.

    `environ`: of the process that runs there.
    """

    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    cpu: bool = False  # use CPU devices
    require_gpu: bool = False
    keep: int | None = None  # limit on the candidates that a plan lists
    alone: bool = True  # False: one of several hosts, for which runs of one host are not used
    command: str = "gputopo run"  # the command in a claim of GPUs
    trains: bool = False  # uses TensorFlow, which must be able to use the GPUs
    _costs: "dict[str, Workload | None]" = field(default_factory=dict)
    _before: dict[tuple[Any, ...], Before] = field(default_factory=dict)

    def target(self, request: Request, claimed: Mapping[int, str] = {}) -> Target:
        """Plan a request, and choose the backend. Claims no GPU.

        `claimed`: GPUs that other processes have claimed, with the holder. Raises HardwareError for a broken
        driver, if there is no GPU but one is required, and for a requested GPU that TensorFlow cannot use.
        Raises UsageError and NoPlanError for a request that cannot be met.
        """
        if self.require_gpu and self.cpu:
            raise UsageError("--require-gpu and --cpu cannot be combined", "use only one of them")
        if self.rehearsal_of is not None:
            return self._rehearsal(request)
        if self.why_cpu is not None:
            return self._without_gpus(request, self.why_cpu)
        unusable = self.unusable
        refused = next((gpu for gpu in request.gpus or () if gpu in unusable), None)
        if refused is not None:
            raise HardwareError(
                f"GPU {refused}: {unusable[refused]}", "use other GPUs: gputopo inspect lists them"
            )
        plan = planner.plan_here(
            self.machine,
            request,
            self.environ,
            claimed,
            unusable=unusable,
            keep=self.keep,
            **self._past(request)._asdict(),
        )
        return self.planned(plan)

    def planned(self, plan: Plan) -> Target:
        """Return the target of a plan for GPUs of the site, also of a captured machine."""
        return Target("gpu", self, plan)

    def _rehearsal(self, request: Request) -> Target:
        if self.require_gpu:
            raise UsageError(
                "--require-gpu and --from cannot be combined: a rehearsal runs on CPU devices",
                "use only one of them",
            )
        plan = planner.plan(self.machine, request, keep=self.keep)
        return Target("cpu", self, plan, why_cpu="a rehearsal")

    def _without_gpus(self, request: Request, why: str) -> Target:
        if self.require_gpu:
            raise HardwareError(
                f"{why}, but --require-gpu needs one",
                "run it on a machine with GPUs; gputopo inspect lists them",
            )
        for option, given in (("--gpus", request.gpus), ("--exclude", request.exclude)):
            if given:
                raise UsageError(
                    f"{option} needs GPUs, but this machine has none: {why}",
                    f"remove {option} to use CPU devices",
                )
        devices = request.num_gpus if isinstance(request.num_gpus, int) else CPU_DEVICES
        plan = planner.cpu_plan(request, devices)
        if request.single_gpu_images_per_sec:
            raise UsageError(
                f"--single-gpu-images-per-sec needs a GPU, but this machine has none: {why}", "remove it"
            )
        if request.num_gpus == "auto":
            why += f", and --num-gpus auto is {CPU_DEVICES} without GPUs"
        return Target("cpu", self, plan, why_cpu=why, cpu_devices=devices)

    def claimed(self, request: Request, claims: contextlib.ExitStack | None) -> Target:
        """Return the target of a request, on GPUs that no other process has claimed.

        The GPUs are claimed until `claims` closes; if that is None, they are not claimed. Raises
        GputopoError.
        """

        def choose(others: Mapping[int, str]) -> tuple[Target, tuple[int, ...]]:
            target = self.target(request, others)
            return target, target.plan.choice.gpus if target.backend == "gpu" else ()

        return choose_and_claim(self.machine, choose, claims, self.command)

    @cached_property
    def why_cpu(self) -> str | None:
        """Why a run here uses CPU devices, as a clause; None if it uses GPUs.

        Raises HardwareError for an NVIDIA device whose driver does not work.
        """
        if self.cpu:
            return "--cpu"
        broken = driver_broken(self.machine)
        if broken is not None:
            hint = f"{broken.remedy or 'gputopo inspect shows more'} --cpu uses CPU devices."
            raise HardwareError(broken.says, hint)
        if len(planner.hidden_gpus(self.environ, self.machine)) == len(self.machine.gpus):
            return "CUDA_VISIBLE_DEVICES hides all GPUs" if self.machine.gpus else "No NVIDIA device"
        return None

    @cached_property
    def unusable(self) -> Mapping[int, str]:
        """The visible GPUs that the installed TensorFlow cannot use, with the reasons.

        Raises HardwareError if TensorFlow is not installed or can use none of the GPUs.
        """
        if not self.trains or self.rehearsal_of is not None or self.why_cpu is not None:
            return {}
        machine = self.machine
        if machine.tensorflow is None:
            raise HardwareError("TensorFlow is not installed for this Python", install_tensorflow(cuda=True))
        whole = install_support(machine.tensorflow)
        if whole.level == "error":
            raise HardwareError(whole.reason, whole.remedy)
        hidden = planner.hidden_gpus(self.environ, machine)
        visible = [gpu for gpu in machine.gpus if gpu.index not in hidden and not gpu.lost]
        supports = {gpu.index: support_of(machine, gpu) for gpu in visible}
        refused = {index: support for index, support in supports.items() if support.level == "error"}
        if refused and len(refused) == len(visible):
            first, support = next(iter(refused.items()))
            raise HardwareError(f"GPU {first}: {support.reason}", support.remedy)
        return {index: support.reason for index, support in refused.items()}

    def with_costs(self, request: Request) -> Request:
        """Return the request with the model's costs, if no table has them but they are known or can be found.

        What keeps the model from being built the worker reports in full.
        """
        _ = self.unusable  # check before TensorFlow builds a model
        model = request.model
        if model is None or not self.machine.gpus or self.cpu:
            return request
        if model not in self._costs:
            self._costs[model] = None
            with contextlib.suppress(GputopoError):
                self._costs[model] = with_costs(request).workload
        return msgspec.structs.replace(request, workload=request.workload or self._costs[model])

    def _past(self, request: Request) -> Before:
        """Return the earlier measurements on this machine that apply to a request."""
        if not self.alone:
            return Before()
        key = (request.model, request.no_history, request.predicts, request.single_gpu_images_per_sec)
        if key not in self._before:
            self._before[key] = measured_before(self.machine, request)
        return self._before[key]


def with_costs(request: Request) -> Request:
    """Return the request with the model's costs; a model without table or stored costs is built once.

    If it cannot be built here, the reason is printed to stderr. Raises UsageError for a model that cannot be
    built anywhere.
    """
    if (
        request.workload is not None
        or request.model is None
        or ":" not in request.model
        or not request.predicts
    ):
        return request
    from gputopo.launch.jobs.model_costs import known_workload, workload_of
    from gputopo.launch.models import require_code

    workload = known_workload(request.model)
    if workload is None:
        require_code(request.model)
        note(f"building {request.model} once to measure its cost")
        try:
            workload = workload_of(request.model)
        except InputError as error:
            note(error.what)
    return msgspec.structs.replace(request, workload=workload)


def tensorflow_notes(target: Target) -> tuple[str, ...]:
    """Return notes about TensorFlow on the GPUs of a target, as sentences for the time before the start."""
    machine, chosen = target.machine, target.plan.choice.gpus
    if target.backend == "cpu" or machine is None or machine.tensorflow is None:
        return ()
    whole = install_support(machine.tensorflow)
    notes: dict[str, list[int]] = {} if whole.level == "fine" else {f"{whole.reason}: {whole.remedy}": []}
    compiling = []
    for gpu in machine.gpus:
        if gpu.index in chosen:
            support = support_of(machine, gpu)
            if support.level != "fine":
                notes.setdefault(f"{support.reason}: {support.remedy}", []).append(gpu.index)
            elif support.compiles:
                compiling.append(gpu.index)
    sentences = [f"GPU {index_ranges(gpus)}: {note}" if gpus else note for note, gpus in notes.items()]
    if compiling:
        sentences.append(
            f"the driver compiles kernels of TensorFlow for GPU {index_ranges(compiling)} at the first "
            "start, which can take minutes; later starts find them in ~/.nv/ComputeCache"
        )
    return tuple(sentences)


def rehearsal_name(sources: Sequence[str]) -> str | None:
    """Return the name of the captured machine from `--from`, as valid UTF-8; None without a capture."""
    names = ("a capture from stdin" if source == "-" else Path(source).stem for source in sources)
    return " + ".join(names).encode(errors="replace").decode() or None
