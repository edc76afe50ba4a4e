"""What a user asked of `gputopo run`: model or program, options as typed, and the values that they set."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gputopo.cli.run.implied import implied_update, strategy_has_copies
from gputopo.cli.run.options import OutputOptions
from gputopo.launch.hosts.allocation import HostOptions
from gputopo.launch.spec.run_spec import Precision
from gputopo.values.errors import UsageError
from gputopo.values.option import Given
from gputopo.values.run.batches import AUTO, is_auto

if TYPE_CHECKING:
    from gputopo.launch.spec.run_spec import RunSpec
    from gputopo.launch.spec.target import Target
    from gputopo.planner import Request


@dataclass(frozen=True)
class Asked:
    """One call of `gputopo run`: `program` or `model`, its options by theme, files of another machine."""

    program: tuple[str, ...]
    model: str | None
    placement: Given
    sources: tuple[str, ...]
    training: Given
    hosts: Given
    showing: Given

    @cached_property
    def options(self) -> OutputOptions:
        """What is shown and written, and how it ends."""
        return OutputOptions(**self.showing.fields)

    @cached_property
    def host_options(self) -> HostOptions:
        """The other hosts, and how they meet."""
        return HostOptions(**self.hosts.fields)

    @cached_property
    def typed(self) -> dict[str, Any]:
        """Options of the plan and of the training as typed, by name."""
        return {**placed(self.placement), **self.training.typed}

    @cached_property
    def request(self) -> "Request":
        """The request for a plan. Raises UsageError."""
        training = {} if self.program else self.training.fields
        return request_of(self.placement.fields, self.typed, self.model, training)

    @property
    def is_predicted(self) -> bool:
        """Whether the plan's prediction is of this run. Raises UsageError for a needless speed."""
        return is_predicted(self.placement.fields, self.training.fields)

    def spec_of(self, target: "Target") -> "RunSpec":
        """Return the spec of the training on a target. Raises UsageError."""
        from gputopo.launch.spec.prepare import spec_of

        assert self.model is not None, "a program has no spec of the core"
        return spec_of(target, self.model, self.typed, **self.training.fields)

    def check_output(self) -> None:
        """Raise InputError for a folder that cannot be written to."""
        from gputopo.launch.supervise import run_folder as runs

        runs.check_output(None if self.options.output is None else Path(self.options.output))


def placed(placement: Given) -> dict[str, Any]:
    """Return the options of the plan that were typed, but for `auto`, which leaves the choice to gputopo."""
    return {name: value for name, value in placement.typed.items() if value != "auto"}


def request_of(
    placement: Mapping[str, Any], asked: Mapping[str, Any], model: str | None, training: Mapping[str, Any]
) -> "Request":
    """Return the request for a plan of the options' values. Raises UsageError.

    `placement`, `training`: the fields that they set; `asked`: what was typed.
    """
    from gputopo import planner
    from gputopo.launch.spec import model_names

    if model is not None:
        model = model_names.model_for(model, asked.get("data_name"))
    update = "replicated" if strategy_has_copies(asked) else implied_update(asked)
    return planner.Request(
        model=model,
        batch_size=AUTO if is_auto(asked.get("batch_size")) else training.get("batch_size"),
        precision=training.get("precision", Precision()).compute,
        predicts=is_predicted(placement, training),
        **{**placement, "variable_update": update},
    )


def is_predicted(placement: Mapping[str, Any], training: Mapping[str, Any]) -> bool:
    """Return whether the steps are those of the core's own towers. Raises UsageError for a needless speed."""
    others = [("task", "train"), ("method", None), ("strategy", None)]
    other = next((name for name, own in others if training.get(name, own) != own), None)
    if other is not None and "single_gpu_images_per_sec" in placement:
        raise UsageError(
            f"--single-gpu-images-per-sec cannot be combined with --{other} {training[other]}: "
            "only training by the core is predicted",
            "leave one of them out",
        )
    return other is None
