"""`gputopo run`: train on the planned GPUs with the built-in core, or run the user's own program there."""

import os
import sys
from typing import TYPE_CHECKING, Any

from gputopo.cli import run_options as given
from gputopo.cli.plan_options import (
    ExcludeOption,
    GpusOption,
    NumGpusOption,
    PreferPixOption,
    PsOption,
    VariableUpdateOption,
    request_from,
)
from gputopo.cli.source import FromOption, planned_machine
from gputopo.errors import UsageError

if TYPE_CHECKING:
    from gputopo.launch.target import Target


def run(
    program: given.ProgramArgument = None,
    model: given.ModelOption = None,
    num_gpus: NumGpusOption = None,
    gpus: GpusOption = None,
    exclude: ExcludeOption = None,
    prefer_pix: PreferPixOption = False,
    ps: PsOption = "auto",
    variable_update: VariableUpdateOption = "auto",
    sources: FromOption = None,
    batch_size: given.BatchSizeOption = None,
    num_batches: given.NumBatchesOption = None,
    num_warmup_batches: given.NumWarmupBatchesOption = None,
    data_format: given.DataFormatOption = None,
    grad_reduce: given.GradReduceOption = "mean",
    learning_rate: given.LearningRateOption = None,
    seed: given.SeedOption = None,
    add_work: given.AddWorkOption = None,
    require_gpu: given.RequireGpuOption = False,
    output: given.OutputOption = None,
    shape: given.FormatOption = "table",
    json: given.JsonOption = False,
    tf_cnn_log: given.TfCnnLogOption = False,
    fail_on: given.FailOnOption = None,
    dry_run: given.DryRunOption = False,
) -> int:
    """Train a model on the best GPUs, watch each of them, and report; or run a program on these GPUs.

    Without an NVIDIA device it trains on CPU devices and says so; with --from it rehearses the plan of
    another machine on CPU devices. After -- comes a program of your own: it is run with the GPUs of the plan.

    Exit codes: 0 fine; 1 an anomaly and --fail-on warning; 2 bad input; 3 the hardware, the driver, memory or
    disk cannot do it; 130, 143 ended by Ctrl-C, SIGTERM; a program's own code, 128 + n for signal n.
    """
    typed = dict(locals())
    printed = given.shape_of(shape, json=json, tf_cnn_log=tf_cnn_log)
    worst = given.fail_on_of(fail_on)
    training = given.training_of(typed)
    if program:
        _refuse_for_program(typed)
    elif model is None:
        raise UsageError("nothing to run", "add --model alexnet, or a program of your own after --")
    plan_options = ("model", "num_gpus", "gpus", "exclude", "prefer_pix", "ps", "variable_update")
    request = request_from(**{name: typed[name] for name in plan_options})

    from gputopo.launch import runs, target

    runs.check_output(output)
    chosen = target.target_of(
        planned_machine(sources or ()),
        request,
        environ=os.environ,
        rehearsal_of=target.rehearsal_name(sources or ()),
        require_gpu=require_gpu,
    )
    if program:
        return _run_program(program, chosen, dry_run=dry_run, printed=printed)
    from gputopo.cli import training_run

    assert model is not None
    options = given.options_of(training, chosen, model=model, num_gpus=num_gpus)
    if dry_run:
        return training_run.show_only(chosen, options, output, printed)
    return training_run.train(chosen, options, output, printed, fail_on_anomaly=worst == "warning")


_OF_THE_CORE = {
    "batch_size": None,
    "num_batches": None,
    "num_warmup_batches": None,
    "data_format": None,
    "grad_reduce": "mean",
    "learning_rate": None,
    "seed": None,
    "add_work": None,
    "output": None,
    "tf_cnn_log": False,
    "fail_on": None,
}


def _refuse_for_program(typed: dict[str, Any]) -> None:
    for name, default in _OF_THE_CORE.items():
        if typed[name] not in (default, []):
            raise UsageError(
                f"--{name.replace('_', '-')} is for the built-in core, not for a program of your own",
                "leave it out, or give it to the program: what follows -- is the program's",
            )
    if typed["sources"] and not typed["dry_run"]:
        raise UsageError(
            "--from plans for another machine, and a program runs on this one",
            "leave --from out, or add --dry-run to see the plan only",
        )


def _run_program(program: list[str], chosen: "Target", *, dry_run: bool, printed: str) -> int:
    from gputopo.launch import env
    from gputopo.launch.program import check_program, run_program

    has_gpus = chosen.backend == "gpu" or chosen.rehearsal_of is not None
    environment = env.program_env(os.environ, chosen.plan.environment if has_gpus else None)
    check_program(program, environment)
    if dry_run:
        from gputopo.cli.dry_run import show_dry_run

        show_dry_run(chosen.plan, None, env.changes(os.environ, environment), program, printed)
        return 0
    gpus = ", ".join(map(str, chosen.plan.choice.gpus))
    says = (
        f"{program[0]} runs on GPU {gpus}" if has_gpus else f"{chosen.why_cpu}: {program[0]} runs without one"
    )
    print(f"gputopo: {says}.", file=sys.stderr, flush=True)
    return run_program(program, environment)
