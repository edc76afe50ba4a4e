"""`gputopo run`: its options. What it does: `gputopo.cli.run.flow`."""

from typing import Annotated

from gputopo.cli.source import FROM
from gputopo.launch.hosts.allocation import HostOptions
from gputopo.values.option import Given, Option, OptionsOf, Typed
from gputopo.values.run.options import OutputOptions
from gputopo.values.run.placement import PlanOptions
from gputopo.values.run.spec import RunSpec


def run(
    *,
    program: Annotated[
        tuple[str, ...], Option("[-- PROGRAM ARGS...]", "Program to run on these GPUs instead", repeated=True)
    ] = (),
    model: Annotated[
        str | None,
        Option(
            "--model",
            "alexnet, keras:NAME or your module:function",
            detail="Model to train (gputopo models)",
            value="NAME",
        ),
    ] = None,
    placement: Annotated[Given, OptionsOf(PlanOptions)],
    sources: Annotated[tuple[str, ...], FROM] = (),
    training: Annotated[Given, OptionsOf(RunSpec)],
    hosts: Annotated[HostOptions, OptionsOf(HostOptions)],
    options: Annotated[OutputOptions, OptionsOf(OutputOptions)],
    typed: Typed,
) -> int:
    """Train a model on the best GPUs, monitor each of them, and report; or run a program on these GPUs.

    Without an NVIDIA device, or with --cpu, it trains on CPU devices, which every output shows; with --from
    it rehearses the plan of another machine on them. A program after -- runs with the GPUs of the plan.

    The flags of tf_cnn_benchmarks are understood where they mean the same, with dashes or underscores:
    --use_fp16, --local_parameter_device=gpu, --all_reduce_spec=xring, --nouse_nccl.

    Exit codes: 0 fine; 1 --fail-on and an anomaly, a NaN loss, or what is wrong with the GPUs
    of a program; 2 bad input; 3 the hardware, the driver, memory or disk cannot do it; 130, 143 ended by
    Ctrl-C, SIGTERM; a program's own code, 128 + n for signal n, 3 where --stall-timeout ended it.
    """
    from gputopo.cli.run.flow import Asked, do
    from gputopo.launch.job import Job

    return do(Asked(Job(model, placement, training, program), sources, hosts, options, typed, run))
