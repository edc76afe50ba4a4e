"""`gputopo inspect`: what this machine is, and what is wrong with it."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from gputopo.cli.printing import emit, show_report
from gputopo.launch import FROM, HostOptions, begin_reading, machine_from
from gputopo.values.errors import ExitCode, UsageError
from gputopo.values.fields import same_address
from gputopo.values.index_ranges import index_ranges
from gputopo.values.option import Given, Option, OptionsOf

if TYPE_CHECKING:
    from gputopo.report import Document
    from gputopo.values.finding import Inspection
    from gputopo.values.machine import Machine

Shape = Literal["table", "json", "markdown", "prometheus", "csv", "scontrol"]
FailOn = Literal["warning", "error"]
INTERVAL_S = 1.0
MIN_INTERVAL_S = 0.1  # below it, sampling itself changes what it measures


class InspectOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to inspect, and how to show it."""

    sources: Annotated[tuple[str, ...], FROM] = ()
    record: Annotated[
        Path | None,
        Option(
            "--record",
            "Also write the machine to a file that --from reads",
            detail="With --fleet: a folder with one file per host",
        ),
    ] = None
    shape: Annotated[
        Shape,
        Option(
            "--format",
            "Output format: markdown for bug reports, prometheus for textfiles, csv with --watch; "
            "scontrol with --fleet prints Slurm commands that drain hosts with errors (with --fail-on "
            "warning: also with warnings)",
        ),
    ] = "table"
    diff: Annotated[
        str | None,
        Option(
            "--diff",
            "Show what differs from another recording or capture",
            detail="The recording may be of another machine",
            value="OTHER",
        ),
    ] = None
    fleet: Annotated[
        bool,
        Option(
            "--fleet",
            "Compare several hosts and report those that differ",
            detail="The hosts are several --from files, --hosts, or the tasks of srun",
        ),
    ] = False
    baseline: Annotated[
        Path | None,
        Option(
            "--baseline",
            "Also show what changed on each host since a recording",
            detail="With --fleet: the folder that --record wrote",
            value="FOLDER",
            more=True,
        ),
    ] = None
    gpus: Annotated[
        str | None,
        Option(
            "--gpu",
            "Show only these GPUs, with all their facts and findings",
            detail="By index, range, PCI address or UUID: 0-3,6 or 0000:5e:00.0",
            value="LIST",
            letter="-i",
        ),
    ] = None
    topology: Annotated[
        bool, Option("--topology", "Show the topology matrix, PCI tree and network ports")
    ] = False
    whole: Annotated[bool, Option("--all", "Show everything, with all remedies")] = False
    watch: Annotated[bool, Option("--watch", "Sample clocks, power and links until Ctrl-C")] = False
    interval: Annotated[
        float | None,
        Option(
            "--interval",
            "Time between two samples of --watch",
            value="TIME",
            default="1",
            unit="s",
            min=0.1,
            max=31622400,
            more=True,
        ),
    ] = None
    duration: Annotated[
        float | None,
        Option(
            "--duration",
            "End --watch after this time",
            value="TIME",
            unit="s",
            min=0,
            max=31622400,
            more=True,
        ),
    ] = None
    fail_on: Annotated[
        FailOn | None,
        Option(
            "--fail-on",
            "Exit with code 1 if a finding is at least this severe",
            detail="Differences are not included",
        ),
    ] = None
    identities: Annotated[
        bool,
        Option(
            "--identities",
            "Include host name, UUIDs and user names in output and recordings",
            detail="--all always shows the users of processes",
        ),
    ] = False


def inspect(
    options: Annotated[InspectOptions, OptionsOf(InspectOptions)],
    hosts: Annotated[Given, OptionsOf(HostOptions)],
) -> int:
    """Show this machine, its GPUs and links, and what is wrong with them.

    Exit codes: 0 fine; 1 findings at or above --fail-on, or copies that corrupt data; 2 bad input; 3 the
    driver of an NVIDIA device does not work, or there is nothing to watch.
    """
    if options.watch:
        from gputopo.cli.watch import watch

        machine = machine_from(())
        if chosen := _chosen(machine, options.gpus):
            kept = tuple(gpu for gpu in machine.gpus if gpu.index in chosen)
            machine = msgspec.structs.replace(machine, gpus=kept)
        every = _default_interval(options.duration) if options.interval is None else options.interval
        return watch(machine, every, options.duration, options.shape, options.fail_on)
    if options.fleet or (hosts.typed and hosts.fields.get("num_hosts") != 1):
        return _inspect_fleet(options, hosts)
    if options.shape == "scontrol" or options.baseline is not None:
        what = "--baseline" if options.baseline is not None else "--format scontrol"
        raise UsageError(f"{what} is for several hosts", "add --fleet; for one host there is --diff FILE")
    return _inspect_once(options)


def _chosen(machine: "Machine", text: str | None) -> tuple[int, ...]:
    """Return the GPUs that are given by index, range, PCI address or UUID. Raises UsageError."""
    if text is None:
        return ()
    from gputopo.values.run.placement import parse_gpu_list  # loads modules that only planning needs

    chosen: list[int | str] = []
    for word in text.split(","):
        named = [
            gpu.index
            for gpu in machine.gpus
            if word.lower() == (gpu.uuid or "-").lower() or same_address(word, gpu.pci_address or "-")
        ]
        is_name = ":" in word or word.upper().startswith("GPU-")
        chosen += named or ([word] if is_name else parse_gpu_list("--gpu", word))
    known = {gpu.index for gpu in machine.gpus}
    if strangers := [gpu for gpu in chosen if gpu not in known]:
        hint = f"the GPUs of this machine: {index_ranges(known) or 'none'}"
        raise UsageError(f"there is no GPU {strangers[0]}", hint)
    return tuple(dict.fromkeys(map(int, chosen)))


def _inspect_fleet(output: InspectOptions, hosts: Given) -> int:
    from gputopo import findings
    from gputopo.cli.fleet import files_of_fleet, record, recorded
    from gputopo.launch import ask_for_machines, find_hosts, read_machines
    from gputopo.report import drain_commands, fleet_document

    options = HostOptions(**hosts.fields)
    fleet_hosts = None if output.sources else find_hosts(options, os.environ)
    if fleet_hosts is None:
        machines = read_machines(files_of_fleet(output.sources, "compares hosts"))
    else:
        machines = ask_for_machines(fleet_hosts, options)
    if not machines:
        return ExitCode.OK
    before = {} if output.baseline is None else recorded(output.baseline)
    fleet = findings.inspect_fleet(machines, before, output.fail_on)
    if output.record is not None:
        record(machines, output.record)
    if output.shape == "scontrol":
        emit(drain_commands(fleet, output.fail_on or "error"))
    else:
        show_report(fleet, lambda: fleet_document(fleet), output.shape)
    failed = findings.fails([*fleet.findings, *fleet.shared], output.fail_on)
    return ExitCode.FINDINGS if failed else ExitCode.OK


def _default_interval(duration_s: float | None) -> float:
    """Return the default seconds between two samples; a short watch still gets a second sample."""
    return INTERVAL_S if not duration_s else max(min(INTERVAL_S, duration_s), MIN_INTERVAL_S)


def _inspect_once(options: InspectOptions) -> int:
    if options.diff == "-" and "-" in options.sources:
        raise UsageError("standard input can be read only once", "give - to --from or to --diff, not both")
    old = None if options.diff is None else machine_from([options.diff])
    with begin_reading(options.sources) as read:
        from gputopo import findings
        from gputopo.topology import with_p2p_reasons, without_identities
        from gputopo.values import schema
        from gputopo.values.finding import Inspection

        whole = with_p2p_reasons(read())
    chosen = _chosen(whole, options.gpus)
    machine = whole if options.identities else without_identities(whole)
    problems = findings.find(machine)
    if chosen:
        problems = tuple(finding for finding in problems if set(chosen).intersection(finding.subject.gpus))
    inspection = Inspection(machine=machine, findings=problems)
    if options.record is not None:
        schema.make_folder(options.record.parent)
        schema.write(options.record, machine)
    if old is not None:
        from gputopo.findings import machine_difference
        from gputopo.report import difference_document

        changes = machine_difference(old, whole)
        show_report(changes, lambda: difference_document(changes), options.shape)
    else:
        # The terminal shows whose processes use the GPUs. Output to a file or a program does not, unless
        # requested.
        shown = Inspection(machine=whole, findings=inspection.findings)
        _print(shown if options.shape == "table" else inspection, options, chosen)
    if not options.sources and findings.driver_broken(machine) is not None:  # does not matter for a capture
        return ExitCode.HARDWARE
    return ExitCode.FINDINGS if findings.fails(inspection.findings, options.fail_on) else ExitCode.OK


def _print(inspection: "Inspection", options: InspectOptions, chosen: Sequence[int]) -> None:
    if options.shape == "prometheus":
        from gputopo.report import exposition

        emit(exposition(inspection))
        return

    def document() -> "Document":
        from gputopo.findings import checks_made
        from gputopo.report import inspection_document

        machine = inspection.machine
        gpus = tuple(gpu for gpu in machine.gpus if not chosen or gpu.index in chosen)
        checks = checks_made(msgspec.structs.replace(machine, gpus=gpus))
        if options.whole and not chosen:
            return inspection_document(inspection, "all", checks=checks)
        return inspection_document(
            inspection, chosen or ("topology" if options.topology else None), checks=checks
        )

    show_report(inspection, document, options.shape)
