"""`gputopo bandwidth`: the measured bandwidth of this machine's links, judged."""

import contextlib
import os
import time
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from gputopo.cli.plan_options import parse_gpu_list
from gputopo.cli.printing import emit, note, show, to_stderr
from gputopo.cli.source import machine_from
from gputopo.values.bandwidth import Level
from gputopo.values.errors import ExitCode, InputError, UsageError
from gputopo.values.option import Given, Option, OptionsOf

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gputopo.findings import Finding
    from gputopo.report.layout import Line
    from gputopo.runs.history import Saved
    from gputopo.values.bandwidth import Bandwidth
    from gputopo.values.machine import Machine

Shape = Literal["table", "json", "markdown"]
FailOn = Literal["warning", "error"]
INTERRUPTED = 130  # 128 + SIGINT
INTERRUPTED_NOTE = "gputopo: interrupted; this is what was measured until then\n"
TIMED_OUT = "TIMED_OUT"  # the reason of a Failure whose copy did not come back
GPUS = Option("--gpus", "Only these GPUs, by nvidia-smi index: 0,1 or 0-3", value="LIST", read=parse_gpu_list)
FORMAT = Option("--format", "Output format; markdown for bug reports")
JSON = Option("--json", "Same as --format json", const="json")


class BandwidthOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure or read, and what to print of it."""

    gpus: Annotated[tuple[int, ...] | None, GPUS] = None
    level: Annotated[
        Level | None,
        Option("--quick", "Only the main paths, within a minute on eight GPUs. The default", const="quick"),
        Option(
            "--full",
            "Everything: more repeats, all message sizes, remote NUMA nodes. Takes minutes",
            const="full",
        ),
    ] = None
    numa: Annotated[
        int | None,
        Option(
            "--numa",
            "NUMA node of host memory",
            value="NODE",
            default="that of each GPU",
            min=0,
            max=9999,
        ),
    ] = None
    sources: Annotated[
        tuple[str, ...],
        Option(
            "--from",
            "Judge this instead of measuring: output of bandwidthTest, p2pBandwidthLatencyTest or "
            "nvbandwidth, or JSON of gputopo; with a capture of the machine beside it. Repeatable",
            value="FILE",
            repeated=True,
        ),
    ] = ()
    save: Annotated[
        bool,
        Option(
            "--save",
            "Save the result for this machine, so that plan and run use it; with --from for the machine that "
            "was read",
        ),
    ] = False
    baseline: Annotated[
        bool, Option("--baseline", "Show only what changed beyond noise since the last saved result")
    ] = False
    matrices: Annotated[bool, Option("--matrices", "Full GPU-to-GPU matrix per path")] = False
    shape: Annotated[Shape, FORMAT, JSON] = "table"
    fail_on: Annotated[
        FailOn | None,
        Option(
            "--fail-on",
            "Exit with 1 on a finding of this severity or worse; with --baseline, if anything got worse",
        ),
    ] = None


def bandwidth(given: Annotated[Given, OptionsOf(BandwidthOptions)]) -> int:
    """Measure each link, alone and shared: host, GPU pairs, memory; report findings.

    Without a working driver only host memory is measured, and the rest is reported as not measured. Ctrl-C
    ends the measurement and shows the results so far, which are not saved.

    Exit codes: 0 fine; 1 findings at or above --fail-on; 2 bad input; 3 no GPU could be measured (not with
    --from); 130 ended by Ctrl-C.
    """
    options = BandwidthOptions(**given.fields)
    _check(options, given.typed)
    from gputopo.topology.peer_access import with_reasons

    machine = with_reasons(machine_from(options.sources))
    # A baseline that is missing is reported before anything is measured.
    old = _saved_baseline(machine, options.gpus) if options.baseline else None
    measured = with_expected(machine, _measured(options, machine))
    code = _report(options, machine, measured, old)
    if options.save:
        _save(machine, measured)
    if not options.sources and any(failure.reason == TIMED_OUT for failure in measured.failures):
        _end(code)
    return code


def _check(options: BandwidthOptions, typed: "Mapping[str, object]") -> None:
    """Raise UsageError for options that do not go together."""
    stray = next((name for name in ("gpus", "full", "quick", "numa") if name in typed), None)
    if options.sources and stray is not None:
        raise UsageError(f"--{stray} is for measuring, and --from only reads", "leave one of the two out")
    if options.matrices and (options.baseline or options.shape != "table"):
        raise UsageError(
            "--matrices is for the table of the links; Markdown has the matrices, and JSON every number",
            "leave it out",
        )


def _measured(options: BandwidthOptions, machine: "Machine") -> "Bandwidth":
    """Read the bandwidth, or measure it."""
    if options.sources:
        if machine.bandwidth is None:
            raise InputError(
                "what --from was given holds no bandwidth",
                "give what bandwidthTest, p2pBandwidthLatencyTest, nvbandwidth or gputopo bandwidth wrote",
            )
        return machine.bandwidth
    return measure_links(options, machine)


def with_expected(machine: "Machine", measured: "Bandwidth") -> "Bandwidth":
    """Return the bandwidth with the expected numbers, and the GPUs that share an uplink."""
    from gputopo.copies.expected import with_expectations
    from gputopo.copies.sharing import uplink_groups

    groups = measured.uplink_groups or uplink_groups(measured.samples, machine)
    return with_expectations(msgspec.structs.replace(measured, uplink_groups=groups), machine)


def _report(
    options: BandwidthOptions, machine: "Machine", measured: "Bandwidth", old: "Saved | None"
) -> ExitCode | int:
    """Print the report and return the exit code."""
    from gputopo import findings

    judged = msgspec.structs.replace(machine, bandwidth=measured)
    found = findings.find_bandwidth(judged)
    if old is None:
        print_bandwidth(judged, measured, found, options.shape, matrices=options.matrices)
        reached = options.fail_on is not None and findings.reaches(found, options.fail_on)
    else:
        reached = _print_difference(judged, measured, old, options.shape, options.fail_on)
    if not measured.complete and not options.sources:
        to_stderr(INTERRUPTED_NOTE)
        return INTERRUPTED
    if not options.sources and not _reached_a_gpu(measured):
        return ExitCode.HARDWARE
    return ExitCode.FINDINGS if reached else ExitCode.OK


def _reached_a_gpu(measured: "Bandwidth") -> bool:
    return any("gpu:" in (sample.source + sample.destination) for sample in measured.samples)


def print_bandwidth(
    machine: "Machine",
    measured: "Bandwidth",
    found: "tuple[Finding, ...]",
    shape: Shape,
    *,
    matrices: bool = False,
) -> None:
    """Print measured bandwidth with its findings."""
    if shape == "json":
        from gputopo.report.bandwidth.view import report_of
        from gputopo.topology.identities import without_identities
        from gputopo.values import schema

        bare = without_identities(machine)
        emit(schema.encode_pretty(report_of(bare, bare.bandwidth or measured, found)))
    elif shape == "markdown":
        from gputopo.report.bandwidth.view import bandwidth_markdown

        emit(bandwidth_markdown(machine, measured, found))
    else:
        from gputopo.cli.terminal import for_this_stdout
        from gputopo.report.bandwidth.view import bandwidth_view

        def view(width: int) -> "list[Line]":
            return bandwidth_view(machine, measured, found, width, matrices=matrices)

        show(lambda width: for_this_stdout(view(width)))


def _save(machine: "Machine", measured: "Bandwidth") -> None:
    """Save a complete result; print why another one is not saved. Raises InputError."""
    why = None
    if not measured.complete:
        what = "an interrupted result" if measured.source == "live" else "a capture that ends early"
        why = f"{what} is no baseline"
    if not _reached_a_gpu(measured):
        why = why or "no GPU was measured"
    if why is not None:
        to_stderr(f"gputopo: not saved: {why}\n")
        return
    from gputopo.runs import history

    path = history.history_file()
    history.save(path, machine, measured, saved_at=time.time())
    to_stderr(f"gputopo: saved in {path}; plan and run use it\n")


def _end(code: int) -> None:
    """End the process at once: a copy that hangs in the driver would block an orderly exit."""
    emit("")
    to_stderr("")
    os._exit(code)


def measure_links(options: BandwidthOptions, machine: "Machine") -> "Bandwidth":
    """Measure the links of this machine. Ctrl-C ends it with what there is, `complete` False.

    Where no GPU could be measured, the reason is printed to stderr, and what was measured is returned.
    """
    from gputopo.cli.progress import ProgressLine
    from gputopo.copies.jobs import Request
    from gputopo.launch.jobs.claims import claim_free
    from gputopo.probes.session.measuring import NoGpuMeasuredError, measure
    from gputopo.report.layout import plain
    from gputopo.values.bandwidth import NotMeasured

    with contextlib.ExitStack() as claims:
        others = claim_free(machine, options.gpus, os.environ, "gputopo bandwidth", claims, on_problem=note)
        gpus = tuple(gpu.index for gpu in machine.gpus if gpu.index not in others) if others else options.gpus
        request = Request(gpus=gpus, level=options.level or "quick", numa=options.numa)
        try:
            with ProgressLine() as line:
                measured = measure(machine, request, line.show)
        except NoGpuMeasuredError as error:
            to_stderr(f"gputopo: {plain(error.what)}\n  {plain(error.hint)}\n")
            measured = error.bandwidth
    skipped = tuple(NotMeasured(what=f"gpu:{index}", reason=why) for index, why in sorted(others.items()))
    return msgspec.structs.replace(measured, not_measured=(*measured.not_measured, *skipped))


def _saved_baseline(machine: "Machine", gpus: "Sequence[int] | None") -> "Saved":
    """Return what was saved last of this machine, or of it with other GPUs, which is printed to stderr.

    Raises InputError where there is nothing.
    """
    from gputopo.findings.rule import named
    from gputopo.runs import history

    path = history.history_file()
    if (old := history.latest(path, machine, gpus)) is not None:
        return old
    if (old := history.latest_with_other_gpus(path, machine)) is None:
        raise InputError(
            "no bandwidth of this machine was saved to compare with", "save one: gputopo bandwidth --save"
        )
    then, now = (
        {gpu.pci_address: named(gpu) for gpu in history.answering(one)} for one in (old.machine, machine)
    )
    changes = [f"missing: {name}" for at, name in then.items() if at not in now]
    changes += [f"new: {name}" for at, name in now.items() if at not in then]
    to_stderr(f"gputopo: this machine had other GPUs on {old.date}; {'; '.join(changes)}\n")
    return old


def _print_difference(
    machine: "Machine", measured: "Bandwidth", old: "Saved", shape: Shape, fail_on: FailOn | None
) -> bool:
    """Print what changed, and return whether that is as severe as `fail_on`.

    A number that fell beyond noise is a warning; a copy that fails now, or a missing GPU, is an error.
    """
    from gputopo.copies.difference import bandwidth_difference
    from gputopo.topology.identities import without_identities

    now = without_identities(msgspec.structs.replace(machine, bandwidth=measured))
    found = bandwidth_difference(
        old.bandwidth, now.bandwidth or measured, old.machine, msgspec.structs.replace(now, bandwidth=None)
    )
    if shape == "json":
        from gputopo.values import schema

        emit(schema.encode_pretty(found))
    else:
        from gputopo.report.bandwidth.change import change_markdown, change_view

        if shape == "markdown":
            emit(change_markdown(found, old.date))
        else:
            show(lambda width: change_view(found, old.date, width))
    slower = any(not change.better for change in found.changes)
    broken = bool(found.failing or found.missing_gpus)
    return broken if fail_on == "error" else fail_on is not None and (slower or broken)
