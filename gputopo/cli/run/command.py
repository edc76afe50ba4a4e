"""`gputopo run`: train on the planned GPUs with the built-in core, or run the user's own program there."""

import inspect
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gputopo.cli.plan_options import (
    ExcludeOption,
    GpusOption,
    NumGpusOption,
    PreferPixOption,
    PsOption,
    VariableUpdateOption,
    request_from,
)
from gputopo.cli.printing import tell
from gputopo.cli.run import options as run_options
from gputopo.cli.run.offers import at_least, folder_of, with_offers
from gputopo.cli.run.options import exchange, output
from gputopo.cli.source import FromOption, planned_machine
from gputopo.values.errors import UsageError

if TYPE_CHECKING:
    from gputopo.launch.spec.target import Target

ProgramArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[-- PROGRAM ARGS...]", help="Run this on the planned GPUs, not the core."),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="What to train: a model of the README such as alexnet, keras:NAME, or your module:function.",
    ),
]
# Shared with `plan`, which has them without a heading.
_PLANNED: dict[str, tuple[Any, Any]] = {
    "program": (ProgramArgument, None),
    "model": (ModelOption, None),
    "num_gpus": (NumGpusOption, None),
    "gpus": (GpusOption, None),
    "exclude": (ExcludeOption, None),
    "prefer_pix": (PreferPixOption, False),
    "ps": (PsOption, "auto"),
    "variable_update": (VariableUpdateOption, "auto"),
    "sources": (FromOption, None),
}
_FIRST = [
    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
    for name, (annotation, default) in _PLANNED.items()
]


@with_offers(run_options.THEMES, _FIRST)
def run(**typed: Any) -> int:
    """Train a model on the best GPUs, watch each of them, and report; or run a program on these GPUs.

    Without an NVIDIA device it trains on CPU devices and says so; with --from it rehearses the plan of
    another machine on CPU devices. After -- comes a program of your own: it is run with the GPUs of the plan.

    The flags of tf_cnn_benchmarks are understood where they mean the same, with dashes or underscores:
    --use_fp16, --local_parameter_device=gpu, --all_reduce_spec=xring, --nouse_nccl.

    Exit codes: 0 fine; 1 an anomaly and --fail-on warning; 2 bad input; 3 the hardware, the driver, memory or
    disk cannot do it; 130, 143 ended by Ctrl-C, SIGTERM; a program's own code, 128 + n for signal n.
    """
    printed = output.printed_of(typed["format"], json=typed["json"], tf_cnn_log=typed["tf_cnn_log"])
    worst = output.fail_on_of(typed["fail_on"])
    repeats = at_least(1, output.REPEATS, typed["repeats"]) or 1
    every = at_least(1, output.DISPLAY_EVERY, typed["display_every"])
    folder = None if typed["output"] is None else folder_of(output.OUTPUT, typed["output"])
    fields = run_options.fields_of(typed)
    program: list[str] | None = typed["program"]
    if program:
        _refuse_for_program(typed, printed)
    elif typed["model"] is None:
        raise UsageError("nothing to run", "add --model alexnet, or a program of your own after --")
    chosen = _target_of(typed, folder)
    if program:
        return _run_program(program, chosen, dry_run=typed["dry_run"], printed=printed)
    from gputopo.cli.run import training

    options = run_options.options_of(fields, chosen, model=typed["model"], num_gpus=typed["num_gpus"])
    wanted = training.Wanted(
        folder, printed, fail_on_anomaly=worst == "warning", repeats=repeats, display_every=every
    )
    if typed["dry_run"]:
        return training.show_only(chosen, options, wanted)
    return training.train(chosen, options, wanted)


def _target_of(typed: dict[str, Any], folder: Path | None) -> "Target":
    """Plan for the machine, with what was asked of the plan."""
    plan_options = ("model", "num_gpus", "gpus", "exclude", "prefer_pix", "ps", "all_reduce")
    copies = strategy_has_copies(typed)
    request = request_from(
        **{name: typed[name] for name in plan_options},
        variable_update="replicated" if copies else exchange.implied_update(typed),
    )

    from gputopo.launch.spec import target
    from gputopo.launch.supervise import run_folder as runs
    from gputopo.planner import is_of_one_gpu

    sources = typed["sources"] or ()
    runs.check_output(folder)
    chosen = target.target_of(
        planned_machine(sources, pairs=not is_of_one_gpu(request)),
        request,
        environ=os.environ,
        rehearsal_of=target.rehearsal_name(sources),
        require_gpu=typed["require_gpu"],
    )
    if not copies:
        return chosen
    from gputopo.launch.spec.prepare import reduced_by_strategy

    return replace(chosen, plan=reduced_by_strategy(chosen.plan))


def strategy_has_copies(typed: dict[str, Any]) -> bool:
    """Whether --strategy alone says where variables are, and that is on every device. Raises UsageError.

    What was asked for beside it is planned as it was typed, so that the rules of the core can refuse it.
    """
    if typed["strategy"] is None or (typed["ps"], exchange.implied_update(typed)) != ("auto", "auto"):
        return False
    from gputopo.launch.spec.strategy_names import read

    return read(typed["strategy"]).kind != "central"


def _refuse_for_program(typed: dict[str, Any], printed: str) -> None:
    stray = run_options.stray_for_program(typed)
    if stray is not None:
        raise UsageError(
            f"{stray.option} is for the built-in core, not for a program of your own",
            "leave it out, or give it to the program: what follows -- is the program's",
        )
    if printed == "json" and not typed["dry_run"]:
        raise UsageError(
            "JSON is the result of the built-in core, and a program of your own prints what it will",
            "leave --json out, or add --dry-run for the plan as JSON",
        )
    if typed["sources"] and not typed["dry_run"]:
        raise UsageError(
            "--from plans for another machine, and a program runs on this one",
            "leave --from out, or add --dry-run to see the plan only",
        )


def _run_program(program: list[str], chosen: "Target", *, dry_run: bool, printed: str) -> int:
    from gputopo.launch.jobs.program import check_program, run_program
    from gputopo.launch.spec import env

    has_gpus = chosen.backend == "gpu" or chosen.rehearsal_of is not None
    environment = env.program_env(os.environ, chosen.plan.environment if has_gpus else None)
    check_program(program, environment)
    if dry_run:
        from gputopo.cli.run.dry import show_dry_run

        show_dry_run(chosen.plan, None, env.changes(os.environ, environment), program, printed)
        return 0
    gpus = ", ".join(map(str, chosen.plan.choice.gpus))
    says = (
        f"{program[0]} runs on GPU {gpus}" if has_gpus else f"{chosen.why_cpu}: {program[0]} runs without one"
    )
    tell(f"gputopo: {says}.\n")
    return run_program(program, environment)
