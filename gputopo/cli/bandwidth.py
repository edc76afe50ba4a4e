"""`gputopo bandwidth`: the measured bandwidth of this machine's links, judged."""

import contextlib
import time
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import msgspec

from gputopo.cli.printing import show_report
from gputopo.launch import HostOptions, machine_from
from gputopo.report import note, show_error
from gputopo.values.bandwidth import (
    TCP,
    Bandwidth,
    CollectiveRate,
    Level,
    NetworkToolChoice,
    TransferRate,
)
from gputopo.values.errors import ExitCode, InputError, UsageError
from gputopo.values.finding import Finding
from gputopo.values.machine import Machine
from gputopo.values.option import Given, Option, OptionsOf, number_in, shown
from gputopo.values.run.placement import GPUS, parse_gpu_list

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gputopo.runs import Saved

Shape = Literal["table", "json", "markdown"]
FailOn = Literal["warning", "error"]
INTERRUPTED = 130  # 128 + SIGINT
INTERRUPTED_NOTE = "interrupted; showing the measurements so far"
_ENDED_NOTE = "the driver ended the measurement; showing the measurements so far"

MIN_SIZE, MAX_SIZE = 1024, 2**34


def parse_sizes(flag: str, text: str) -> tuple[int, ...]:
    """Read `64MiB,512MiB` as bytes, each size once, the smallest first. Raises UsageError."""
    sizes = set()
    for part in text.split(","):
        size = number_in("bytes", part)
        if not MIN_SIZE <= size <= MAX_SIZE:
            raise UsageError(
                f"{flag} cannot be {shown(part)}", "give sizes from 1KiB to 16GiB, as 64MiB,512MiB"
            )
        sizes.add(int(size))
    return tuple(sorted(sizes))


def parse_effort(flag: str, text: str) -> dict[str, str | int]:
    """Read `--effort`: a level, or the number of repeats. Raises UsageError."""
    if text.isdecimal():
        return {"loops": Option(flag, "", min=1, max=1000).whole(text)}
    if text.lower() not in get_args(Level):
        raise UsageError(f"{flag} cannot be {shown(text)}", "give quick, full, or the number of repeats")
    return {"level": text.lower()}


FORMAT = Option("--format", "Output format; markdown for bug reports")


class BandwidthOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure or read, and what to print."""

    gpus: Annotated[tuple[int, ...] | None, parse_gpu_list, GPUS] = None
    level: Annotated[
        Level | None,
        parse_effort,
        Option(
            "--effort",
            "quick: the main paths in about a minute; full: everything; N: number of repeats",
            detail="full: more repeats, all message sizes, remote NUMA nodes; takes minutes. N: like "
            "quick, with N timed repeats of each copy (default: 3 to 13)",
            value="quick|full|N",
            default="quick",
        ),
    ] = None
    soak: Annotated[
        float | None,
        Option(
            "--soak",
            "Stress test for this time; reports rising error counters, falling rates and wrong data",
            detail="Copies between the host, GPUs and memories, all at once",
            value="TIME",
            unit="min",
            above=0,
            max=10080,
        ),
    ] = None
    numa: Annotated[
        int | None,
        Option(
            "--numa",
            "NUMA node of host memory",
            value="NODE",
            default="the node of each GPU",
            min=0,
            max=9999,
            more=True,
        ),
    ] = None
    sizes: Annotated[
        tuple[int, ...],
        parse_sizes,
        Option(
            "--size",
            "Size of each copy; one or several: 64MiB,512MiB",
            value="LIST",
            default="depends on the speed of the copy",
        ),
    ] = ()
    loops: int | None = None  # timed repeats of each copy
    network: Annotated[
        bool,
        Option("--network", "Measure between hosts (--hosts, srun or mpirun) instead of within this one"),
    ] = False
    network_tool: Annotated[
        NetworkToolChoice,
        Option(
            "--network-tool",
            "Program that measures between hosts. auto: the first that all hosts have",
            more=True,
        ),
    ] = "auto"
    sources: Annotated[
        tuple[str, ...],
        Option(
            "--from",
            "Judge output of nvbandwidth, nccl-tests, perftest and others instead of measuring",
            detail="Also bandwidthTest, p2pBandwidthLatencyTest, iperf3, or JSON of gputopo. Add a "
            "capture of the machine to judge its links. Repeatable",
            value="FILE",
            repeated=True,
        ),
    ] = ()
    save: Annotated[
        bool,
        Option(
            "--save",
            "Save the result for plan, run and --baseline",
            detail="With --from: for the machine that was read. With --network: for these hosts, stored "
            "on this host",
        ),
    ] = False
    baseline: Annotated[
        bool, Option("--baseline", "Show only what changed beyond noise since the last saved result")
    ] = False
    whole: Annotated[bool, Option("--all", "Show every number as tables, all remedies and notes")] = False
    shape: Annotated[Shape, FORMAT] = "table"
    fail_on: Annotated[
        FailOn | None,
        Option(
            "--fail-on",
            "Exit with code 1 if a finding is at least this severe (default: error)",
            detail="With --baseline: exit with code 1 if anything became worse; off by default",
        ),
    ] = None


def bandwidth(
    given: Annotated[Given, OptionsOf(BandwidthOptions)], hosts: Annotated[Given, OptionsOf(HostOptions)]
) -> int:
    """Measure the bandwidth of every link and memory, alone and shared, or the network between hosts.

    Without a working driver only host memory is measured, and the rest is reported as not measured. Ctrl-C
    ends the measurement and shows the results so far, which are not saved. If a driver call hangs or
    crashes, the measurement continues without its GPU.

    Exit codes: 0 fine; 1 findings at or above --fail-on: corrupted data, a GPU that fails or hangs; 2 bad
    input; 3 no GPU could be measured, or the driver ended the measurement (not with --from); 130 Ctrl-C.
    """
    options = BandwidthOptions(**given.fields)
    if options.network or hosts.typed:
        return _network(options, hosts)
    from gputopo.topology import with_p2p_reasons

    machine = with_p2p_reasons(machine_from(options.sources))
    # Report a missing baseline before anything is measured.
    old = _saved_baseline(machine, options.gpus) if options.baseline else None
    if options.soak is not None:
        return _soak(options, machine)
    measured = with_expected(machine, _measured(options, machine))
    code = _report(options, machine, measured, old)
    if options.save:
        _save(machine, measured)
    return code


def _network(options: BandwidthOptions, hosts: Given) -> int:
    """Measure between hosts, print the report, and return the exit code."""
    from gputopo import findings
    from gputopo.copies import with_expectations
    from gputopo.launch import measure_network

    network = measure_network(HostOptions(**hosts.fields), options.level, options.network_tool)
    if network is None:
        return ExitCode.OK
    measured, nics = network
    machine = Machine(source="live", bandwidth=measured)
    if measured.samples.of(CollectiveRate):
        machine = msgspec.structs.replace(machine, nics=nics)
        measured = with_expectations(measured, machine)
        machine = msgspec.structs.replace(machine, bandwidth=measured)
    problems = findings.find_bandwidth(machine)
    print_bandwidth(machine, problems, options.shape, whole=options.whole)
    if options.save:
        _save_network(measured)
    failed = findings.fails(problems, options.fail_on or "error")
    return ExitCode.HARDWARE if not measured.complete else ExitCode.FINDINGS if failed else ExitCode.OK


def _save_network(measured: "Bandwidth") -> None:
    """Save a measurement between hosts if it is complete, else print why not. Raises InputError."""
    if not measured.complete or measured.failures:
        note("not saved: some transfers between hosts have no result")
        return
    from gputopo.runs import BoxHistory

    history = BoxHistory()
    measured = msgspec.structs.replace(measured, measured_at=time.time())
    if lost := history.save_network(measured, saved_at=time.time()):
        note(lost)
    is_tcp = any(sample.transport == TCP for sample in measured.samples.of(TransferRate))
    use = "; plan and run of these hosts, started here, use it" if is_tcp else ""
    note(f"saved in {history.path}{use}")


def _soak(options: BandwidthOptions, machine: "Machine") -> ExitCode | int:
    """Measure under load, print the report, and return the exit code."""
    from gputopo import findings
    from gputopo.probes import SoakReadings
    from gputopo.topology import with_p2p_reasons

    soak_s = 60 * (options.soak or 0.0)
    with SoakReadings(machine, soak_s, lambda: machine_from(()), gpus=options.gpus) as readings:
        measured = with_expected(machine, measure_links(options, machine, readings.tick))
        machine = with_p2p_reasons(readings.machine())
        soak = measured.soak and msgspec.structs.replace(measured.soak, port_errors=readings.port_errors())
        notes = (*measured.notes, *readings.notes())
        measured = msgspec.structs.replace(measured, soak=soak, notes=notes)
        machine = msgspec.structs.replace(machine, bandwidth=measured)
    problems = findings.find_bandwidth(machine, readings.history)
    print_bandwidth(machine, problems, options.shape, whole=options.whole)
    return _code(options, measured, problems, failed=findings.fails(problems, options.fail_on or "error"))


def _measured(options: BandwidthOptions, machine: "Machine") -> "Bandwidth":
    """Read the bandwidth, or measure it."""
    if options.sources:
        if machine.bandwidth is None:
            raise InputError(
                "the file given with --from has no bandwidth",
                "give what bandwidthTest, p2pBandwidthLatencyTest, nvbandwidth, nccl-tests, perftest, iperf3 "
                "or gputopo wrote",
            )
        return machine.bandwidth
    return measure_links(options, machine)


def with_expected(machine: "Machine", measured: "Bandwidth") -> "Bandwidth":
    """Return the bandwidth with the expected rates and the GPUs that share an uplink."""
    from gputopo.copies import uplink_groups, with_expectations

    groups = measured.uplink_groups or uplink_groups(measured.copies, machine)
    return with_expectations(msgspec.structs.replace(measured, uplink_groups=groups), machine)


def _report(
    options: BandwidthOptions, machine: "Machine", measured: "Bandwidth", old: "Saved | None"
) -> ExitCode | int:
    """Print the report and return the exit code."""
    from gputopo import findings

    judged = msgspec.structs.replace(machine, bandwidth=measured)
    problems = findings.find_bandwidth(judged)
    if old is None:
        print_bandwidth(judged, problems, options.shape, whole=options.whole)
        failed = findings.fails(problems, options.fail_on or "error")
    else:
        failed = _print_difference(judged, measured, old, options.shape, options.fail_on)
        if findings.fails(problems, None):
            failed = True
            note("copies corrupted data; run without --baseline to list them")
    return _code(options, measured, problems, failed=failed)


def _code(
    options: BandwidthOptions, measured: "Bandwidth", problems: "Sequence[Finding]", *, failed: bool
) -> ExitCode | int:
    """Return the exit code, and print to stderr why a measurement ended early."""
    from gputopo import findings

    if not measured.complete and not options.sources:
        interrupted = any(lacking.reason == "interrupted" for lacking in measured.not_measured)
        note(INTERRUPTED_NOTE if interrupted else _ENDED_NOTE)
        return INTERRUPTED if interrupted else ExitCode.HARDWARE
    if not options.sources and not _reached_a_gpu(measured) and not findings.fails(problems, None):
        return ExitCode.HARDWARE
    return ExitCode.FINDINGS if failed else ExitCode.OK


def _reached_a_gpu(measured: "Bandwidth") -> bool:
    samples = any(sample.gpus for sample in measured.samples if not isinstance(sample, CollectiveRate))
    return samples or (measured.soak is not None and bool(measured.soak.intervals))


class BandwidthReport(Bandwidth, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.bandwidth/1"):
    """A `gputopo.bandwidth/1` document with two more fields; it can be read as a bandwidth.

    `machine` is stored without its bandwidth, which would only repeat this document.
    """

    machine: Machine | None = None
    findings: tuple[Finding, ...] = ()


def report_of(machine: Machine, bandwidth: Bandwidth, findings: tuple[Finding, ...]) -> BandwidthReport:
    """Return the JSON document of a bandwidth, its machine and its findings."""
    fields = {name: getattr(bandwidth, name) for name in Bandwidth.__struct_fields__}
    bare = msgspec.structs.replace(machine, bandwidth=None)
    return BandwidthReport(**fields, machine=bare, findings=findings)


def print_bandwidth(
    machine: "Machine", problems: "tuple[Finding, ...]", shape: Shape, *, whole: bool = False
) -> None:
    """Print the bandwidth that was measured on a machine, with its findings."""
    from gputopo.report import bandwidth_document
    from gputopo.topology import without_identities

    measured, bare = machine.bandwidth, without_identities(machine)
    assert measured is not None, "it was measured"
    show_report(
        report_of(bare, bare.bandwidth or measured, problems),
        lambda: bandwidth_document(machine, measured, problems, whole=whole or shape == "markdown"),
        shape,
    )


def _save(machine: "Machine", measured: "Bandwidth") -> None:
    """Save a measurement if it is complete, else print why not. Raises InputError."""
    why = None
    if not measured.complete:
        what = "a result that ended early" if measured.source == "live" else "a capture that ends early"
        why = f"{what} is no baseline"
    if not _reached_a_gpu(measured):
        collectives = measured.samples.of(CollectiveRate)
        why = why or ("collective operations show no single path" if collectives else "no GPU was measured")
    if why is not None:
        note(f"not saved: {why}")
        return
    from gputopo.runs import BoxHistory

    history = BoxHistory()
    if lost := history.save(machine, measured, saved_at=time.time()):
        note(lost)
    note(f"saved in {history.path}; plan and run use it")


def measure_links(
    options: BandwidthOptions, machine: "Machine", on_pause: "Callable[[], None]" = lambda: None
) -> "Bandwidth":
    """Measure the links of this machine in a child process.

    Ctrl-C ends the measurement; the result then has `complete` False. If no GPU could be measured, the reason
    is printed to stderr and the other measurements are returned. `on_pause` is called repeatedly meanwhile.
    """
    from gputopo.cli.progress import ProgressLine
    from gputopo.launch import claim_free
    from gputopo.probes import NoGpuMeasuredError, SessionRequest, measure_watched
    from gputopo.values.bandwidth import NotMeasured

    with contextlib.ExitStack() as claims:
        others = claim_free(machine, options.gpus, claims)
        gpus = tuple(gpu.index for gpu in machine.gpus if gpu.index not in others) if others else options.gpus
        _note_other_load(machine, gpus)
        request = SessionRequest(
            gpus=gpus,
            level=options.level or "quick",
            numa=options.numa,
            sizes=options.sizes,
            loops=options.loops,
            soak_s=None if options.soak is None else 60 * options.soak,
        )
        try:
            with ProgressLine() as line:
                measured = measure_watched(machine, request, line.show, on_pause=on_pause)
        except NoGpuMeasuredError as error:
            show_error(error.what, error.hint)
            measured = error.bandwidth
    skipped = tuple(NotMeasured(what=f"gpu:{index}", reason=why) for index, why in sorted(others.items()))
    return msgspec.structs.replace(measured, not_measured=(*measured.not_measured, *skipped))


def _note_other_load(machine: "Machine", gpus: "Sequence[int] | None") -> None:
    """Print to stderr which of the GPUs other programs use, before they are put under load."""
    from gputopo.findings import use_of

    for gpu in machine.gpus:
        use = None if gpu.lost or (gpus is not None and gpu.index not in gpus) else use_of(gpu)
        if use is not None and use.severity == "warning":
            note(
                f"GPU {gpu.index} is {use.words}: measured rates will be low, and that program will be "
                "slowed down"
            )


def _saved_baseline(machine: "Machine", gpus: "Sequence[int] | None") -> "Saved":
    """Return the last saved measurement of this machine, if necessary one with other GPUs (a note says so).

    The note goes to stderr. Raises InputError if nothing is saved.
    """
    from gputopo.findings import named
    from gputopo.runs import BoxHistory
    from gputopo.topology import answering_gpus

    history = BoxHistory()
    if (old := history.latest(machine, gpus)) is not None:
        return old
    if (old := history.latest_with_other_gpus(machine)) is None:
        raise InputError(
            "no bandwidth of this machine was saved to compare with", "save one: gputopo bandwidth --save"
        )
    then = {gpu.pci_address: named(gpu) for gpu in answering_gpus(old.machine)}
    now = {gpu.pci_address: named(gpu) for gpu in answering_gpus(machine)}
    changes = [f"missing: {name}" for at, name in then.items() if at not in now]
    changes += [f"new: {name}" for at, name in now.items() if at not in then]
    note(f"this machine had other GPUs on {old.date}; {'; '.join(changes)}")
    return old


def _print_difference(
    machine: "Machine", measured: "Bandwidth", old: "Saved", shape: Shape, fail_on: FailOn | None
) -> bool:
    """Print what changed, and return whether that is as severe as `fail_on`.

    A number that fell beyond noise is a warning; a copy that fails now, or a missing GPU, is an error.
    """
    from gputopo.findings import bandwidth_difference
    from gputopo.topology import without_identities

    now = without_identities(msgspec.structs.replace(machine, bandwidth=measured))
    difference = bandwidth_difference(
        old.bandwidth, now.bandwidth or measured, old.machine, msgspec.structs.replace(now, bandwidth=None)
    )
    from gputopo.report import bandwidth_change_document

    show_report(difference, lambda: bandwidth_change_document(difference, old.date), shape)
    slower = any(not change.better for change in difference.changes)
    broken = bool(difference.failing or difference.missing_gpus)
    return broken if fail_on == "error" else fail_on is not None and (slower or broken)
