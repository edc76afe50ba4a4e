"""A training as it is asked for, the machine that it is planned on, and what is checked before it starts.

`run`, `screen`, `sweep`, `plan --autotune` and hosts of a run all come by here: `Job` has the options,
`PlannedOn` the machine and what was measured there before, `prepare` makes the target and the spec of a job.
"""

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gputopo.cli.placement import update_of
from gputopo.cli.printing import note
from gputopo.cli.run.options import OutputOptions
from gputopo.cli.source import planned_machine
from gputopo.launch.jobs.before import Before, measured_before
from gputopo.launch.spec.readers import is_utf8
from gputopo.launch.spec.run_spec import Precision
from gputopo.launch.supervise import run_folder as runs
from gputopo.values.errors import GputopoError, InputError, UsageError
from gputopo.values.option import Given, shown
from gputopo.values.run.all_reduce import NCCL
from gputopo.values.run.batches import AUTO, is_auto

if TYPE_CHECKING:
    from gputopo.launch.spec.env import Usable
    from gputopo.launch.spec.run_spec import RunSpec
    from gputopo.launch.spec.target import Target
    from gputopo.planner import Request
    from gputopo.values.machine import Machine
    from gputopo.values.run.plan import Plan
    from gputopo.workload.workloads import Workload

# Options of a run, as typed, that need replicas, or a parameter server.
_OF_REPLICAS = (
    *("all_reduce", "gradient_repacking", "fp16_transfer"),
    *("agg_small_grads_max_bytes", "agg_small_grads_max_group"),
)
_OF_A_SERVER = ("staged_vars", "async")


@dataclass(frozen=True)
class AskedJob:
    """The options of a training, or of the plan of a program (`model` None), as they were given."""

    model: str | None
    placement: Given
    training: Given = Given()  # noqa: RUF009 (frozen)

    @cached_property
    def typed(self) -> dict[str, Any]:
        """What was typed, by name; `auto` leaves the choice to gputopo, as nothing does."""
        placed = {name: value for name, value in self.placement.typed.items() if value != "auto"}
        return {**placed, **self.training.typed}

    @cached_property
    def request(self) -> "Request":
        """The request for a plan. Raises UsageError."""
        from gputopo import planner
        from gputopo.launch.spec import model_names

        training = {} if self.model is None else self.training.fields
        model = self.model
        if model is not None:
            model = model_names.model_for(model, self.typed.get("data_name"))
        precision, predicts = training.get("precision", Precision()), self.model is None or self.is_predicted
        return planner.Request(
            model=model,
            batch_size=AUTO if is_auto(self.typed.get("batch_size")) else training.get("batch_size"),
            precision=precision.compute,
            predicts=predicts,
            fits=predicts and ":" not in (model or ":") and not precision.xla,
            **{
                **self.placement.fields,
                "variable_update": "replicated" if self._has_copies else self.update,
                **({"variable_update": "parameter_server", "ps": "cpu"} if self._has_one_place else {}),
                **({"all_reduce": NCCL} if self._is_by_nccl_between_hosts and self._has_copies else {}),
            },
        )

    @property
    def _is_by_nccl_between_hosts(self) -> bool:
        """Whether TensorFlow's strategy of several hosts trains, whose steps are those of rings of NCCL."""
        from gputopo.launch.spec.names import MULTI_WORKER, read

        strategy = self.training.fields.get("strategy")
        asked = None if strategy is None else read(strategy)
        return asked is not None and asked.kind == MULTI_WORKER and asked.reduction in (None, "nccl")

    @cached_property
    def is_predicted(self) -> bool:
        """Whether steps of such towers are predicted. Raises UsageError for a needless speed."""
        fields = self.training.fields
        others = [("task", "train"), ("method", None)]
        others += [] if self._is_by_nccl_between_hosts else [("strategy", None)]
        other = next((name for name, own in others if fields.get(name, own) != own), None)
        if other is not None and "single_gpu_images_per_sec" in self.placement.fields:
            raise UsageError(
                "--single-gpu-images-per-sec cannot be combined with "
                f"--{'task' if other == 'task' else 'strategy'} {fields[other]}: "
                "only training by the core is predicted",
                "leave one of them out",
            )
        return other is None

    @property
    def update(self) -> str:
        """The --variable-update that the options need, where it was left to gputopo; else auto."""
        typed = self.typed
        update = update_of(typed.get("variable_update", "auto"))
        if update != "auto":
            return update
        relaxed = str(typed.get("variable_consistency", "")).lower() == "relaxed"
        if relaxed or any(typed.get(name) for name in _OF_REPLICAS):
            return "replicated"
        is_served = "method" in self.training.fields or any(typed.get(name) for name in _OF_A_SERVER)
        return "parameter_server" if is_served else update

    @property
    def _kind_of_strategy(self) -> str | None:
        """The kind of --strategy that decides where variables are; None: none does, or --ps was typed.

        What was asked for beside it is planned as it was typed, so that the rules can refuse it.
        """
        from gputopo.launch.spec.names import read

        strategy = self.training.fields.get("strategy")
        return None if strategy is None or "ps" in self.typed else read(strategy).kind

    @property
    def _has_one_place(self) -> bool:
        """Whether a strategy or a method has all variables in one place: the CPU, unless asked otherwise."""
        is_in_one_place = self._kind_of_strategy == "central" or "method" in self.training.fields
        return is_in_one_place and "ps" not in self.typed and self.update in ("auto", "parameter_server")

    @property
    def _has_copies(self) -> bool:
        """Whether --strategy alone decides where variables are, and that is on every device."""
        return self._kind_of_strategy not in (None, "central") and self.update == "auto"

    def placed(self, target: "Target") -> "Target":
        """Return the target without a reduction where a strategy of tf.distribute has its own."""
        if not self._has_copies:
            return target
        from gputopo.launch.spec.prepare import reduced_by_strategy

        return replace(target, plan=reduced_by_strategy(target.plan))

    def on_hosts(self, target: "Target", make: "Callable[[Target], RunSpec]") -> "tuple[Target, RunSpec]":
        """Return a target and its spec, or the next best where options do not go with NCCL between hosts.

        Raises what `make` raises.
        """
        try:
            return target, make(target)
        except UsageError as error:
            plan = target.plan
            rest = tuple(one for one in plan.candidates if one.all_reduce != NCCL)
            by_nccl = plan.choice.all_reduce == NCCL and target.others and "all_reduce" not in self.typed
            if not (by_nccl and rest):
                raise
            note(f"without NCCL between hosts: {error.what}")
            reasons = (f"NCCL would be faster between hosts: {error.what}",)
            choice = msgspec.structs.replace(rest[0], reasons=reasons)
            plan = msgspec.structs.replace(plan, choice=choice, candidates=(choice, *rest[1:]))
            target = replace(target, plan=plan)
            return target, make(target)

    def spec_of(self, target: "Target") -> "RunSpec":
        """Return the spec of the training on a target. Raises UsageError."""
        from gputopo.launch.spec.prepare import spec_of

        assert self.model is not None, "a program has no spec of the core"
        return spec_of(target, self.model, self.typed, **self.training.fields)


@dataclass
class PlannedOn:
    """A machine that jobs are planned on: this one, or that of the captures that `sources` names."""

    machine: "Machine"
    sources: Sequence[str] = ()
    cpu: bool = False
    require_gpu: bool = False
    affinity: bool = True
    keep: int | None = None  # bound of the candidates that a plan lists
    alone: bool = True  # False: one of several hosts, where runs of one do not count
    command: str = "gputopo run"  # as a claim of GPUs names it
    trains: bool = False  # with TensorFlow, which must be able to use the GPUs
    _costs: "dict[str, Workload | None]" = field(default_factory=dict)
    _before: dict[tuple[Any, ...], Before] = field(default_factory=dict)

    def before(self, request: "Request") -> Before:
        """Return what was measured on this machine before, which counts for a request."""
        if self.sources or self.cpu or not self.alone:
            return Before()
        key = (request.model, request.no_history, request.predicts, request.single_gpu_images_per_sec)
        if key not in self._before:
            self._before[key] = measured_before(self.machine, request)
        return self._before[key]

    def with_costs(self, request: "Request") -> "Request":
        """Return the request with the costs of a model that no table has, where they are known or found.

        What keeps the model from being built the worker reports in full.
        """
        _ = self.unusable  # before TensorFlow builds a model
        model = request.model
        if model is None or not self.machine.gpus or self.cpu:
            return request
        if model not in self._costs:
            self._costs[model] = None
            with contextlib.suppress(GputopoError):
                self._costs[model] = with_costs(request).workload
        return msgspec.structs.replace(request, workload=request.workload or self._costs[model])

    def target(self, request: "Request", claimed: Mapping[int, str] = {}) -> "Target":
        """Return the target of a request without `claimed` GPUs, which claims none. Raises GputopoError."""
        from gputopo.launch.spec.target import rehearsal_name, target_of

        return target_of(
            self.machine,
            request,
            environ=os.environ,
            claimed=claimed,
            **self.before(request)._asdict(),
            rehearsal_of=rehearsal_name(self.sources),
            require_gpu=self.require_gpu,
            cpu=self.cpu,
            keep=self.keep,
            usable=self.usable,
            affinity=self.affinity,
            unusable=self.unusable,
        )

    @cached_property
    def unusable(self) -> Mapping[int, str]:
        """The GPUs that TensorFlow cannot use, with the reasons. Raises HardwareError if it can use none."""
        from gputopo.launch.spec.target import gpus_without_tensorflow, why_cpu

        if not self.trains or self.sources or why_cpu(self.machine, os.environ, cpu=self.cpu) is not None:
            return {}
        return gpus_without_tensorflow(self.machine, os.environ)

    @cached_property
    def usable(self) -> "Usable":
        """The CPUs that this process may use."""
        from gputopo.launch.supervise.cgroup import usable_cpus

        return usable_cpus()

    def claimed(self, request: "Request", claims: contextlib.ExitStack | None) -> "Target":
        """Return the target of a request, of GPUs that no other process has claimed.

        They are claimed until `claims` closes; None: they are not. Raises GputopoError.
        """
        from gputopo.launch.jobs.claims import choose_and_claim

        return choose_and_claim(
            self.machine,
            lambda others: self.target(request, others),
            claims,
            os.environ,
            self.command,
            on_problem=note,
        )


def planned_on(request: "Request", sources: Sequence[str] = (), **settings: Any) -> PlannedOn:
    """Read the machine, with its saved bandwidth where that counts for a request. Raises GputopoError."""
    from gputopo import planner

    pairs = not (planner.is_of_one_gpu(request) or request.no_history)
    return PlannedOn(planned_machine(sources, pairs=pairs), sources, **settings)


def prepare(
    job: AskedJob, on: PlannedOn, claims: contextlib.ExitStack | None, request: "Request | None" = None
) -> "Target":
    """Return where a job runs: planned, its GPUs claimed until `claims` closes. Raises GputopoError."""
    return job.placed(on.claimed(on.with_costs(request or job.request), claims))


def runnable(job: AskedJob, target: "Target", options: OutputOptions) -> "RunSpec":
    """Return the spec of a job on its target, once it is checked. Raises GputopoError."""
    spec = job.spec_of(target)
    require_runnable(target, spec, options)
    return spec


def with_costs(request: "Request") -> "Request":
    """Return the request with the costs of a model that no table has, which is built if none are stored.

    Why it cannot be built here is printed to stderr. Raises UsageError for a model that cannot be built.
    """
    if (
        request.workload is not None
        or request.model is None
        or ":" not in request.model
        or not request.predicts
    ):
        return request
    from gputopo.launch.jobs.model_costs import known_workload, workload_of
    from gputopo.launch.models.source_check import require_there

    workload = known_workload(request.model)
    if workload is None:
        require_there(request.model)
        note(f"building {request.model} once to count what it costs")
        try:
            workload = workload_of(request.model)
        except InputError as error:
            note(error.what)
    return msgspec.structs.replace(request, workload=workload)


def warn(chosen: "Plan") -> None:
    """Print to stderr which GPUs were passed over, or taken nevertheless, and why."""
    for line in chosen.warnings:
        note(line)


def warn_of_tensorflow(chosen: "Target") -> None:
    """Print to stderr what to know of TensorFlow on the chosen GPUs before it starts."""
    from gputopo.launch.spec.target import tensorflow_notes

    for line in tensorflow_notes(chosen):
        note(line)


def require_runnable(target: "Target", spec: "RunSpec", options: OutputOptions) -> None:
    """Check before the worker starts what is cheap to see here. Raises GputopoError."""
    from gputopo.launch.spec.memory_check import require_memory
    from gputopo.launch.spec.rules import check_layout
    from gputopo.launch.supervise.cgroup import memory_bytes

    if options.repeats > 1:
        _require_repeatable(spec)
    require_restartable(spec, options)
    if spec.lifecycle.trace_steps and options.output is None:
        _require_home_of_traces(runs.runs_home(os.environ).absolute())
    check_layout(spec, target.environment(os.environ, spec))
    require_memory(
        spec,
        [one.machine for one in (target, *target.others)],
        host_bytes=[memory_bytes(), *(one.memory_bytes for one in target.others)],
    )
    if spec.data.folder is not None:
        from gputopo.launch.data.folder import find, require_made_for, require_sound

        found = find(Path(spec.data.folder), spec.data.name)
        require_made_for(found, spec.model)
        if spec.data.bad_records == "stop":
            require_sound(found, "validation" if spec.task == "eval" else "train")
    from gputopo.launch.models.source_check import require_there

    require_there(spec.model)


def require_restartable(spec: "RunSpec", options: OutputOptions) -> None:
    """Raise UsageError where a run is to start again after a failure, and cannot."""
    if options.restart and (spec.task != "train" or spec.lifecycle.checkpoints is None):
        raise UsageError(
            "--restart goes on from a checkpoint, and this run has none",
            "add --checkpoints DIR, and --checkpoint-steps N for some on the way",
        )


def require_files_of(spec: "RunSpec") -> None:
    """Check the folders of what is saved, as the worker does much later. Raises GputopoError."""
    saved = spec.lifecycle
    trains = spec.task == "train" and (saved.checkpoints or saved.export or saved.tensorboard)
    if spec.task == "eval" or trains:
        from gputopo.launch.train.lifecycle.checkpoint_files import require_files  # loads NumPy

        require_files(spec)


def _require_home_of_traces(home: Path) -> None:
    """Raise InputError where the spec, which is UTF-8, could not name the folder of the trace."""
    if not is_utf8(str(home)):
        raise InputError(
            f"--trace writes into {shown(str(home))}, whose name is not UTF-8, as the files of a run are",
            "name another folder with --output, or set GPUTOPO_HOME",
        )


def _require_repeatable(spec: "RunSpec") -> None:
    """Raise UsageError for files of the first repeat that would disturb the second."""
    saved = spec.lifecycle
    saves = spec.task == "train"  # an evaluation only reads
    for option, folder in (
        ("--checkpoints", saved.checkpoints if saves else None),
        ("--export", saved.export),
        ("--tensorboard", saved.tensorboard),
    ):
        if folder is not None:
            raise UsageError(
                f"--repeats cannot be combined with {option}: all repeats would write to {folder}",
                f"leave {option} out, or run once without --repeats",
            )
