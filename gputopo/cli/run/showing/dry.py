"""Output of `gputopo run --dry-run`: the plan, the environment and the command."""

import shlex
from collections.abc import Mapping, Sequence

import msgspec

from gputopo.launch.spec.host_place import HostPlace
from gputopo.launch.spec.run_spec import RunSpec
from gputopo.launch.spec.target import Target
from gputopo.values.errors import InputError
from gputopo.values.run.plan import Plan


class DryRun(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.dryrun/1"):
    """A run that was not started. `environment`: changes to the caller's. `spec`: of the built-in core.

    `host`: the CPUs, memory and threads of a run on GPUs.
    """

    plan: Plan
    environment: dict[str, str]
    command: tuple[str, ...]
    spec: RunSpec | None = None
    host: HostPlace = HostPlace()


def show_dry_run(
    target: Target, spec: RunSpec | None, environment: Mapping[str, str], command: Sequence[str], shape: str
) -> None:
    """Print it as a table or, where `shape` is json, as a DryRun document. Raises InputError."""
    from gputopo.cli.printing import emit, show

    plan = target.plan
    place = target.host_place if spec is None or spec.backend == "gpu" else HostPlace()
    if shape == "json":
        from gputopo.values import schema

        dry = DryRun(plan=plan, environment=dict(environment), command=tuple(command), spec=spec, host=place)
        try:
            text = schema.encode_pretty(dry)
        except UnicodeEncodeError as error:  # a program's arguments may be any bytes
            raise InputError(
                "the command is not UTF-8, as JSON must be", "leave --json out to see it"
            ) from error
        emit(text)
        return
    says = [*(spec.says if spec is not None else ()), *(() if plan.choice.gpus else plan.choice.reasons)]
    emit("".join(f"{line}\n" for line in says) + "\n")
    if plan.choice.gpus:
        from gputopo.report.plan import plan_view

        show(lambda width: plan_view(plan, width))
        emit("\n")
    sets = "".join(f"  {name}={shlex.quote(value)}\n" for name, value in environment.items())
    if place.says:
        emit("Host\n" + "".join(f"  {line}\n" for line in place.says) + "\n")
    emit(f"Sets\n{sets}\nStarts\n  {shlex.join(command)}\n")
