"""`gputopo bandwidth`: what the links of this machine really do, with a verdict."""

import os
import time
from typing import TYPE_CHECKING

import msgspec

from gputopo.cli.bandwidth import options as given
from gputopo.cli.bandwidth.options import Wish, wish_of
from gputopo.cli.printing import emit, show, tell
from gputopo.cli.source import machine_from
from gputopo.values.errors import ExitCode, InputError

if TYPE_CHECKING:
    from gputopo.findings import Finding
    from gputopo.report.layout import Line
    from gputopo.runs.history import Saved
    from gputopo.values.bandwidth import Bandwidth
    from gputopo.values.machine import Machine

INTERRUPTED = 130  # 128 + SIGINT
TIMED_OUT = "TIMED_OUT"  # the reason of a Failure whose copy did not come back


def bandwidth(
    gpus: given.GpusOption = None,
    quick: given.QuickOption = False,
    full: given.FullOption = False,
    numa: given.NumaOption = None,
    sources: given.SourcesOption = None,
    save: given.SaveOption = False,
    baseline: given.BaselineOption = False,
    allreduce: given.AllreduceOption = False,
    model: given.ModelOption = None,
    all_reduce: given.MethodOption = None,
    matrices: given.MatricesOption = False,
    output: given.FormatOption = None,
    json: given.JsonOption = False,
    fail_on: given.FailOnOption = None,
) -> int:
    """Measure what the links do, each alone and shared: host, pairs, memory; say what is wrong with them.

    Without a working driver the host's memory is measured, and it is said what could not be. Ctrl-C ends the
    measuring and shows what there is until then; that is not filed.

    Exit codes: 0 fine; 1 findings at or above --fail-on; 2 bad input; 3 no GPU could be measured (not with
    --from); 130 ended by Ctrl-C.
    """
    wish = wish_of(
        gpus=gpus,
        quick=quick,
        full=full,
        numa=numa,
        sources=sources,
        save=save,
        baseline=baseline,
        allreduce=allreduce,
        model=model,
        all_reduce=all_reduce,
        matrices=matrices,
        output=output,
        json=json,
        fail_on=fail_on,
    )
    from gputopo.topology.peer_access import with_reasons

    machine = with_reasons(machine_from(wish.sources))
    old = None
    if wish.baseline:
        from gputopo.cli.bandwidth.baseline import saved_baseline

        old = saved_baseline(machine, wish.gpus)  # before anything is measured
    measured = _judged(machine, _measured(wish, machine))
    code = _told(wish, machine, measured, old)
    if wish.save:
        _save(machine, measured)
    if not wish.sources and any(failure.reason == TIMED_OUT for failure in measured.failures):
        _end(code)
    return code


def _measured(wish: Wish, machine: "Machine") -> "Bandwidth":
    """Read, or measure."""
    if wish.sources:
        if machine.bandwidth is None:
            raise InputError(
                "what --from was given holds no bandwidth",
                "give what bandwidthTest, p2pBandwidthLatencyTest, nvbandwidth or gputopo bandwidth wrote",
            )
        return machine.bandwidth
    if wish.model is not None:
        from gputopo.cli.bandwidth.reduction import measure_reduction

        return measure_reduction(wish, machine)
    from gputopo.cli.bandwidth.session import measure_links

    return measure_links(wish, machine)


def _judged(machine: "Machine", told: "Bandwidth") -> "Bandwidth":
    """Give a bandwidth with the expected numbers, and the GPUs that share an uplink."""
    from gputopo.copies.expected import with_expectations
    from gputopo.copies.sharing import uplink_groups

    groups = told.uplink_groups or uplink_groups(told.samples, machine)
    return with_expectations(msgspec.structs.replace(told, uplink_groups=groups), machine)


def _told(wish: Wish, machine: "Machine", measured: "Bandwidth", old: "Saved | None") -> int:
    """Print the report and give the exit code."""
    from gputopo import findings

    judged = msgspec.structs.replace(machine, bandwidth=measured)
    found = findings.find_bandwidth(judged)
    reached = wish.fail_on is not None and findings.reaches(found, wish.fail_on)
    if old is None:
        _print(wish, judged, measured, found)
    else:
        from gputopo.cli.bandwidth.baseline import tell_difference

        reached = tell_difference(judged, measured, old, wish.shape, wish.fail_on)
    if not measured.complete and not wish.sources:
        tell("gputopo: interrupted; this is what was measured until then\n")
        return INTERRUPTED
    if not wish.sources and wish.model is None and not _reached_a_gpu(measured):
        return ExitCode.HARDWARE
    return ExitCode.FINDINGS if reached else ExitCode.OK


def _reached_a_gpu(measured: "Bandwidth") -> bool:
    return any("gpu:" in (sample.source + sample.destination) for sample in measured.samples)


def _print(wish: Wish, machine: "Machine", measured: "Bandwidth", found: "tuple[Finding, ...]") -> None:
    if wish.shape == "json":
        from gputopo.report.bandwidth.view import report_of
        from gputopo.topology.identities import without_identities
        from gputopo.values import schema

        bare = without_identities(machine)
        emit(schema.encode_pretty(report_of(bare, bare.bandwidth or measured, found)))
    elif wish.shape == "markdown":
        from gputopo.report.bandwidth.view import bandwidth_markdown

        emit(bandwidth_markdown(machine, measured, found))
    else:
        from gputopo.cli.terminal import for_this_stdout
        from gputopo.report.bandwidth.view import bandwidth_view

        def view(width: int) -> "list[Line]":
            return bandwidth_view(machine, measured, found, width, matrices=wish.matrices)

        show(lambda width: for_this_stdout(view(width)))


def _save(machine: "Machine", measured: "Bandwidth") -> None:
    """File a whole result; of one that is no use later say that it is not filed. Raises InputError."""
    why = None
    if not measured.complete:
        what = "an interrupted result" if measured.source == "live" else "a capture that ends early"
        why = f"{what} is no baseline"
    if not _reached_a_gpu(measured):
        why = why or "no GPU was measured"
    if why is not None:
        tell(f"gputopo: not saved: {why}\n")
        return
    from gputopo.runs import history

    path = history.history_file()
    history.save(path, machine, measured, saved_at=time.time())
    tell(f"gputopo: saved in {path}; plan and run use it\n")


def _end(code: int) -> None:
    """End the process at once: a copy that hangs in the driver would hold up any orderly end."""
    emit("")
    tell("")
    os._exit(code)
