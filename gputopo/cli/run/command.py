"""`gputopo run`: its options. The steps of a run are in `gputopo.cli.run.flow`."""

from typing import Annotated

from gputopo.launch import FROM, HostOptions
from gputopo.values.option import Given, Option, OptionsOf, Typed
from gputopo.values.run.options import OutputOptions
from gputopo.values.run.placement import PlanOptions
from gputopo.values.run.spec import RunSpec


def run(
    *,
    program: Annotated[
        tuple[str, ...],
        Option(
            "[-- PROGRAM ARGS...]",
            "Program to run on the planned GPUs",
            repeated=True,
        ),
    ] = (),
    model: Annotated[
        str | None,
        Option(
            "--model",
            "Model to train, such as alexnet",
            detail="Also keras:NAME or your module:function; gputopo models lists the models",
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

    Without an NVIDIA device, or with --cpu, it trains on CPU devices, and every output shows this. With
    --from, it rehearses the plan of another machine on CPU devices. A program after -- runs on the GPUs of
    the plan.

    Flags of tf_cnn_benchmarks that mean the same as options of gputopo are accepted, with dashes or
    underscores: --use_fp16, --local_parameter_device=gpu, --all_reduce_spec=xring, --nouse_nccl.

    Exit codes: 0 fine; 1 with --fail-on: an anomaly, a NaN loss, or a fault of the GPUs of a program; 2 bad
    input; 3 a problem with the hardware, the driver, memory or disk; 130, 143 ended by Ctrl-C, SIGTERM. With
    a program: its own exit code; 128 + n if signal n ended it; 3 if --stall-timeout ended it.
    """
    from gputopo.cli.run.flow import Asked, do
    from gputopo.launch import Job

    return do(Asked(Job(model, placement, training, program), sources, hosts, options, typed, run))
