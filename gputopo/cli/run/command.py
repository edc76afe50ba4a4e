"""`gputopo run`: train on the planned GPUs with the built-in core, or run the user's own program there."""

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from gputopo.cli.hosts.driving import hosts_to_start, start_hosts
from gputopo.cli.hosts.exporting import exports_hosts
from gputopo.cli.plan.before import Before, measured_before, warn, with_costs
from gputopo.cli.plan.options import PlanOptions
from gputopo.cli.printing import note
from gputopo.cli.run import start
from gputopo.cli.run.implied import as_strategy_reduces, implied_update, strategy_has_copies
from gputopo.cli.run.options import OutputOptions
from gputopo.cli.source import FROM, planned_machine
from gputopo.launch.hosts.allocation import Allocation, find
from gputopo.launch.hosts.options import HostOptions
from gputopo.launch.spec.run_spec import Precision, RunSpec
from gputopo.values.errors import GputopoError, UsageError
from gputopo.values.option import Given, Option, OptionsOf, parameters_of
from gputopo.values.run.batches import AUTO, is_auto

if TYPE_CHECKING:
    from gputopo.launch.spec.target import Target
    from gputopo.planner import Request
    from gputopo.values.machine import Machine

# Those that a program of the user can be run with, too.
_OF_A_PROGRAM = (
    *("require_gpu", "cpu", "format", "json", "dry_run", "leave_children", "no_affinity"),
    *("output", "prometheus", "fail_on", "on_anomaly", "stall_timeout"),
)


def run(
    *,
    program: Annotated[
        tuple[str, ...],
        Option(
            "[-- PROGRAM ARGS...]", "Program to run on the planned GPUs instead of the core", repeated=True
        ),
    ] = (),
    model: Annotated[
        str | None,
        Option(
            "--model",
            "Model to train: a built-in name such as alexnet, keras:NAME, or your module:function",
            value="NAME",
        ),
    ] = None,
    placement: Annotated[Given, OptionsOf(PlanOptions)],
    sources: Annotated[tuple[str, ...], FROM] = (),
    training: Annotated[Given, OptionsOf(RunSpec)],
    hosts: Annotated[Given, OptionsOf(HostOptions)],
    showing: Annotated[Given, OptionsOf(OutputOptions)],
) -> int:
    """Train a model on the best GPUs, monitor each of them, and report; or run a program on these GPUs.

    Without an NVIDIA device, or with --cpu, it trains on CPU devices, which every output shows; with --from
    it rehearses the plan of another machine on them. A program after -- runs with the GPUs of the plan.

    The flags of tf_cnn_benchmarks are understood where they mean the same, with dashes or underscores:
    --use_fp16, --local_parameter_device=gpu, --all_reduce_spec=xring, --nouse_nccl.

    Exit codes: 0 fine; 1 --fail-on and an anomaly, a loss that is no number, or what is wrong with the GPUs
    of a program; 2 bad input; 3 the hardware, the driver, memory or disk cannot do it; 130, 143 ended by
    Ctrl-C, SIGTERM; a program's own code, 128 + n for signal n, 3 where --stall-timeout ended it.
    """
    options = OutputOptions(**showing.fields)
    asked = {**placed(placement), **training.typed}
    if program:
        _refuse_for_program(asked, showing.typed, options, has_capture=bool(sources))
    elif options.leave_children:
        raise UsageError(
            "--leave-children is for your own program: the built-in core leaves no process",
            "leave it out, or name a program after --",
        )
    elif model is None:
        raise UsageError("nothing to run", "add --model alexnet, or a program after --")
    start.require_dry(options.shape, dry_run=options.dry_run)
    if exports_hosts(options.shape, HostOptions(**hosts.fields)):
        return _export(hosts, program, placement, asked, model, training, showing, sources, options)
    if (starting := hosts_to_start(HostOptions(**hosts.fields))) is not None:
        request = request_of(placement.fields, asked, model, training.fields)
        _require_several(options, request, sources, is_program=bool(program))
        typed = {**placement.typed, **training.typed, **hosts.typed, **showing.typed, "model": model}
        may_lose = options.min_hosts is not None
        given = HostOptions(**hosts.fields)
        return start_hosts(run, starting, given, typed, program=program, may_lose=may_lose)
    if (found := find(HostOptions(**hosts.fields), os.environ)) is not None:
        if program:
            return _run_on_hosts(found, hosts, program, placement.fields, asked, sources, options)
        return _train_on_hosts(found, hosts, placement.fields, asked, model, training, sources, options)
    of_hosts = {*hosts.typed, *({"min_hosts"} & {*showing.typed})}
    for name in sorted(of_hosts - {"num_hosts"}):
        note(f"--{name.replace('_', '-')} has no effect: this run has one host")
    with contextlib.ExitStack() as claims:
        chosen = _target_of(placement.fields, asked, model, training.fields, sources, options, claims)
        if not options.dry_run:
            warn(chosen.plan)
            for line in chosen.host_place.says if chosen.backend == "gpu" else ():
                note(line)
        declared = parameters_of(run) if options.shape in start.STARTS else ()
        if program and declared:
            words = start.words_of(declared, showing.typed)
            return start.show_start(chosen, options.shape, words, program=program, output=options.output)
        if program:
            from gputopo.cli.run.program import run_own

            return run_own(program, chosen, options)
        from gputopo.cli.run import training as core
        from gputopo.launch.spec.prepare import spec_of

        assert model is not None
        spec = spec_of(chosen, model, asked, **training.fields)
        if declared:
            core.require_runnable(chosen, spec, options)
            is_planned = _is_predicted(placement.fields, training.fields)
            words = ["--model", model, *start.words_of(declared, {**training.typed, **showing.typed})]
            words += [] if is_planned else start.placement_words(declared, placement.typed)
            return start.show_start(
                chosen, options.shape, words, spec=spec, output=options.output, mode=is_planned
            )
        if options.autotune is not None:
            from gputopo.cli.run.autotune import train_fastest

            return train_fastest(
                chosen, spec, options, asked=asked, training=training.fields, update=implied_update(asked)
            )
        return (core.show_only if options.dry_run else core.train)(chosen, spec, options)


def _train_on_hosts(
    allocation: Allocation,
    hosts: Given,
    placement: Mapping[str, Any],
    asked: Mapping[str, Any],
    model: str | None,
    training: Given,
    sources: tuple[str, ...],
    options: OutputOptions,
) -> int:
    from gputopo.cli.run.hosts import Job, train_on_hosts
    from gputopo.launch.spec.prepare import spec_of
    from gputopo.launch.supervise import run_folder as runs

    assert model is not None
    request = request_of(placement, asked, model, training.fields)
    _require_several(options, request, sources)
    runs.check_output(None if options.output is None else Path(options.output))
    machine = planned_machine(())
    if machine.gpus and not options.cpu:
        with contextlib.suppress(GputopoError):
            request = with_costs(request)
    alike = {"model": model, **asked}
    job = Job(request, alike, lambda target: spec_of(target, model, asked, **training.fields))
    return train_on_hosts(allocation, HostOptions(**hosts.fields), job, machine, options)


def _export(
    hosts: Given,
    program: tuple[str, ...],
    placement: Given,
    asked: Mapping[str, Any],
    model: str | None,
    training: Given,
    showing: Given,
    sources: tuple[str, ...],
    options: OutputOptions,
) -> int:
    from gputopo.cli.hosts.exporting import show_hosts_start, words_of_hosts
    from gputopo.launch.spec.prepare import spec_of
    from gputopo.launch.spec.target import rehearsal_name

    def of_core(target: "Target") -> "RunSpec":
        assert model is not None
        return spec_of(as_strategy_reduces(target, asked), model, asked, **training.fields)

    request = request_of(placement.fields, asked, model, training.fields)
    _require_several(options, request, (), is_exported=True)
    typed = {**training.typed, **words_of_hosts(options.shape, hosts.typed), **showing.typed}
    words = start.words_of(declared := parameters_of(run), typed)
    if model is not None:
        words = ["--model", model, *words, *start.placement_words(declared, placement.typed)]
    return show_hosts_start(
        options.shape,
        HostOptions(**hosts.fields),
        request,
        planned_machine(sources),
        words,
        rehearsal_of=rehearsal_name(sources),
        program=program,
        spec_of=None if model is None else of_core,
        folders_of=start.folders_of,
    )


def _run_on_hosts(
    allocation: Allocation,
    hosts: Given,
    program: tuple[str, ...],
    placement: Mapping[str, Any],
    asked: Mapping[str, Any],
    sources: tuple[str, ...],
    options: OutputOptions,
) -> int:
    from gputopo.cli.run.program_hosts import run_on_hosts
    from gputopo.launch.supervise import run_folder as runs

    request = request_of(placement, asked, None, {})
    _require_several(options, request, sources, is_program=True)
    runs.check_output(None if options.output is None else Path(options.output))
    machine = planned_machine(())
    return run_on_hosts(allocation, HostOptions(**hosts.fields), program, request, asked, machine, options)


def _require_several(
    options: OutputOptions,
    request: "Request",
    sources: tuple[str, ...],
    *,
    is_program: bool = False,
    is_exported: bool = False,
) -> None:
    """Raise UsageError for what one host can do alone only."""
    nothing_predicted = is_program or is_exported  # that is of the core, when the hosts have met
    alone = {
        "--from": bool(sources),
        f"--format {options.shape}": options.shape in start.STARTS and not is_exported,
        "--dry-run": options.dry_run and is_program,
        "--num-gpus auto": request.num_gpus == "auto" and nothing_predicted,
        "--gain": request.gain is not None and nothing_predicted,
        "--autotune": options.autotune is not None,
        "--repeats": options.repeats > 1,
        "--single-gpu-images-per-sec with several numbers": len(request.single_gpu_images_per_sec) > 1,
    }
    found = next((flag for flag, is_asked in alone.items() if is_asked), None)
    if found is not None:
        raise UsageError(
            f"{found} is for one host, and this is a training of several",
            f"leave {found} out, or add --num-hosts 1",
        )


def placed(placement: Given) -> dict[str, Any]:
    """Return the options of the plan that were typed, but for `auto`, which leaves the choice to gputopo."""
    return {name: value for name, value in placement.typed.items() if value != "auto"}


def _target_of(
    placement: Mapping[str, Any],
    asked: Mapping[str, Any],
    model: str | None,
    training: Mapping[str, Any],
    sources: tuple[str, ...],
    options: OutputOptions,
    claims: contextlib.ExitStack,
) -> "Target":
    """Plan for the machine and, unless it is a dry run, claim the GPUs until `claims` closes.

    Raises GputopoError.
    """
    from gputopo import planner
    from gputopo.launch.spec import target
    from gputopo.launch.supervise import run_folder as runs
    from gputopo.launch.supervise.process.cpus import usable_cpus

    request = request_of(placement, asked, model, training)
    runs.check_output(None if options.output is None else Path(options.output))
    needs_bandwidth = not (planner.is_of_one_gpu(request) or request.no_history)
    machine = planned_machine(sources, pairs=needs_bandwidth)
    if machine.gpus and not options.cpu:
        # The worker reports in full what keeps a model from being built.
        with contextlib.suppress(GputopoError):
            request = with_costs(request)

    before = Before() if sources or options.cpu else measured_before(machine, request)

    def choose(others: Mapping[int, str]) -> "Target":
        return target.target_of(
            machine,
            request,
            environ=os.environ,
            claimed=others,
            **before._asdict(),
            rehearsal_of=target.rehearsal_name(sources),
            require_gpu=options.require_gpu,
            cpu=options.cpu,
            usable=usable_cpus(),
            affinity=not options.no_affinity,
        )

    chosen = choose_and_claim(machine, choose, None if options.dry_run else claims)
    return as_strategy_reduces(chosen, asked)


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
        predicts=_is_predicted(placement, training),
        **{**placement, "variable_update": update},
    )


def choose_and_claim(
    machine: "Machine", choose: "Callable[[Mapping[int, str]], Target]", claims: contextlib.ExitStack | None
) -> "Target":
    """Choose GPUs that no other process has claimed, and claim them until `claims` closes (None: do not).

    Where another process is quicker, choose again. Raises GputopoError.
    """
    from gputopo.launch.jobs import claims as jobs

    return jobs.choose_and_claim(machine, choose, claims, os.environ, "gputopo run", on_problem=note)


def _is_predicted(placement: Mapping[str, Any], training: Mapping[str, Any]) -> bool:
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


def _refuse_for_program(
    asked: Mapping[str, Any], typed: Mapping[str, Any], options: OutputOptions, *, has_capture: bool
) -> None:
    """Raise UsageError for what cannot be combined with a program of the user."""
    placed = PlanOptions.__struct_fields__
    strays = [name for name in (*asked, *typed) if name not in (*placed, *_OF_A_PROGRAM)]
    strays += ["all_reduce"] if "all_reduce" in asked else []
    if strays:
        raise UsageError(
            f"--{strays[0].replace('_', '-')} is for the built-in core, not for your own program",
            "leave it out, or give it to the program: what follows -- is the program's",
        )
    if options.shape == "json" and not options.dry_run:
        raise UsageError(
            "stdout is your own program's, so no JSON can be printed there",
            "leave --json out: result.json in the run folder is the result, and --output DIR names that; "
            "--dry-run prints the plan as JSON",
        )
    if has_capture and not options.dry_run:
        raise UsageError(
            "--from plans for another machine, and a program runs on this one",
            "leave --from out, or add --dry-run to see the plan only",
        )
