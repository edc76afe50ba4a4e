"""`gputopo bench-reduction`: time to reduce a model's gradients over the GPUs, by each method."""

from typing import Annotated

import msgspec

from gputopo.cli.bandwidth import (
    FORMAT,
    INTERRUPTED,
    INTERRUPTED_NOTE,
    FailOn,
    Shape,
    print_bandwidth,
    with_expected,
)
from gputopo.launch import machine_from
from gputopo.report import note
from gputopo.values.errors import ExitCode
from gputopo.values.option import Option
from gputopo.values.run.placement import GPUS, parse_gpu_list


def bench_reduction(
    model: Annotated[
        str, Option("--model", "Model whose gradients are reduced, such as alexnet", value="NAME")
    ],
    method: Annotated[
        str | None,
        Option("--all-reduce", "Only this method", value="METHOD", default="all that are available"),
    ] = None,
    gpus: Annotated[tuple[int, ...] | None, parse_gpu_list, GPUS] = None,
    shape: Annotated[Shape, FORMAT] = "table",
    fail_on: Annotated[
        FailOn | None, Option("--fail-on", "Exit with code 1 if a finding is at least this severe")
    ] = None,
) -> int:
    """Time the reduction of a model's gradients in TensorFlow, with each method of --all-reduce.

    Without an NVIDIA device, CPU devices are used, and every output shows this. Ctrl-C ends the measurement
    and shows the results so far.

    Exit codes: 0 fine; 1 findings at or above --fail-on, or wrong sums; 2 bad input; 3 the driver does not
    work, or TensorFlow cannot be used; 130 ended by Ctrl-C.
    """
    from gputopo import findings
    from gputopo.launch import measure_reduction
    from gputopo.topology import with_p2p_reasons
    from gputopo.workload import require_workload

    known = require_workload(model).name
    machine = with_p2p_reasons(machine_from(()))
    measured = with_expected(machine, measure_reduction(machine, known, method, gpus))
    machine = msgspec.structs.replace(machine, bandwidth=measured)
    problems = findings.find_bandwidth(machine)
    print_bandwidth(machine, problems, shape, whole=True)
    if not measured.complete:
        note(INTERRUPTED_NOTE)
        return INTERRUPTED
    return ExitCode.FINDINGS if findings.fails(problems, fail_on) else ExitCode.OK
