"""A requested training or program (`Job`), before it is planned (`gputopo.launch.site`)."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import msgspec

from gputopo.launch.site import Site, tensorflow_notes
from gputopo.launch.spec import model_names
from gputopo.launch.spec.prepare import reduced_by_strategy, spec_of
from gputopo.launch.target import Target
from gputopo.planner import Request
from gputopo.report import note
from gputopo.values.errors import UsageError
from gputopo.values.option import Given
from gputopo.values.run.all_reduce import NCCL
from gputopo.values.run.batches import AUTO, is_auto
from gputopo.values.run.names import MULTI_WORKER, read
from gputopo.values.run.placement import update_note, update_of
from gputopo.values.run.spec import Precision, RunSpec

# Options of a run, as typed, that need replicated variables or a parameter server.
_OF_REPLICAS = (
    "all_reduce",
    "gradient_repacking",
    "fp16_transfer",
    "agg_small_grads_max_bytes",
    "agg_small_grads_max_group",
)
_OF_A_SERVER = ("staged_vars", "async")


def parse_model(_flag: str, text: str) -> str:
    """Return `--model` as typed, after a check. Raises UsageError with the nearest name."""
    model_names.read_model_name(text)
    return text


@dataclass(frozen=True)
class Job:
    """A requested training, or a program of the user with its plan (`model` is None)."""

    model: str | None
    placement: Given
    training: Given = Given()  # noqa: RUF009 (frozen)
    program: tuple[str, ...] = ()

    @cached_property
    def typed(self) -> dict[str, Any]:
        """The typed options by name; an option with `auto` is treated as if it was not typed."""
        placed = {name: value for name, value in self.placement.typed.items() if value != "auto"}
        return {**placed, **self.training.typed}

    @cached_property
    def request(self) -> Request:
        """The request for a plan. Raises UsageError."""
        training = {} if self.model is None else self.training.fields
        model = self.model and model_names.model_for(self.model, self.typed.get("data_name"))
        precision, predicts = training.get("precision", Precision()), self.model is None or self.is_predicted
        if said := update_note(self.typed.get("variable_update", "")):
            note(said)
        placement = {**self.placement.fields, "variable_update": self.update}
        if self._has_copies:
            placement["variable_update"] = "replicated"
            placement |= {"all_reduce": NCCL} if self._is_by_nccl_between_hosts else {}
        elif self._has_one_place:
            placement |= {"variable_update": "parameter_server", "ps": "cpu"}
        return Request(
            model=model,
            batch_size=AUTO if is_auto(self.typed.get("batch_size")) else training.get("batch_size"),
            precision=precision.compute,
            predicts=predicts,
            fits=predicts and ":" not in (model or ":") and not precision.xla,
            **placement,
        )

    @property
    def _is_by_nccl_between_hosts(self) -> bool:
        """Whether TensorFlow's multi-worker strategy trains, which uses NCCL rings between hosts."""
        strategy = self.training.fields.get("strategy")
        asked = None if strategy is None else read(strategy)
        return asked is not None and asked.kind == MULTI_WORKER and asked.reduction in (None, "nccl")

    @cached_property
    def is_predicted(self) -> bool:
        """Whether the step times are predicted. Raises UsageError for a single-GPU speed without a use."""
        fields = self.training.fields
        others = [("task", "train"), ("method", None)]
        others += [] if self._is_by_nccl_between_hosts else [("strategy", None)]
        other = next((name for name, default in others if fields.get(name, default) != default), None)
        if other is not None and "single_gpu_images_per_sec" in self.placement.fields:
            raise UsageError(
                "--single-gpu-images-per-sec cannot be combined with "
                f"--{'task' if other == 'task' else 'strategy'} {fields[other]}: only gputopo's built-in "
                "training is predicted",
                "use only one of them",
            )
        return other is None

    @property
    def update(self) -> str:
        """The --variable-update that the other options need, or `auto` if they need none."""
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
        """The kind of the --strategy that decides where variables are; None if none does, or --ps was typed.

        Options typed together with it are planned as typed, so that the rules can refuse them.
        """
        strategy = self.training.fields.get("strategy")
        return None if strategy is None or "ps" in self.typed else read(strategy).kind

    @property
    def _has_one_place(self) -> bool:
        """Whether a strategy or method keeps all variables on one device: the CPU, unless --ps was typed."""
        is_in_one_place = self._kind_of_strategy == "central" or "method" in self.training.fields
        return is_in_one_place and "ps" not in self.typed and self.update in ("auto", "parameter_server")

    @property
    def _has_copies(self) -> bool:
        """Whether --strategy decides where variables are, and copies them to every device."""
        return self._kind_of_strategy not in (None, "central") and self.update == "auto"

    def planned_on(
        self, site: Site, claims: contextlib.ExitStack | None, request: Request | None = None
    ) -> Target:
        """Return the planned target, with its GPUs claimed until `claims` closes. Raises GputopoError.

        `request`: replaces the job's own request. Unless it is a dry run (`claims` is None), warnings are
        printed to stderr.
        """
        target = self.placed(site.claimed(site.with_costs(request or self.request), claims))
        if claims is not None:
            for line in (*target.plan.warnings, *(tensorflow_notes(target) if site.trains else ())):
                note(line)
        return target

    def placed(self, target: Target) -> Target:
        """Return the target without a reduction if the tf.distribute strategy has its own reduction."""
        if not self._has_copies:
            return target
        return replace(target, plan=reduced_by_strategy(target.plan))

    def on_hosts(self, target: Target, make: Callable[[Target], RunSpec]) -> tuple[Target, RunSpec]:
        """Return a target and its spec, or the next best plan if an option does not allow NCCL between hosts.

        Raises what `make` raises.
        """
        try:
            return target, make(target)
        except UsageError as error:
            plan = target.plan
            rest = tuple(candidate for candidate in plan.candidates if candidate.all_reduce != NCCL)
            by_nccl = plan.choice.all_reduce == NCCL and target.others and "all_reduce" not in self.typed
            if not (by_nccl and rest):
                raise
            note(f"without NCCL between hosts: {error.what}")
            reasons = (f"NCCL would be faster between hosts: {error.what}",)
            choice = msgspec.structs.replace(rest[0], reasons=reasons)
            plan = msgspec.structs.replace(plan, choice=choice, candidates=(choice, *rest[1:]))
            target = replace(target, plan=plan)
            return target, make(target)

    def spec_of(self, target: Target) -> RunSpec:
        """Return the spec of the training on a target. Raises UsageError."""
        assert self.model is not None, "a program has no spec of the core"
        return spec_of(target, self.model, self.typed, **self.training.fields)
