"""`gputopo inspect`: what this machine is, and what is wrong with it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from gputopo.cli.printing import emit, show_report
from gputopo.cli.source import FROM, begin, machine_from
from gputopo.launch.hosts.allocation import HostOptions
from gputopo.values.errors import ExitCode, UsageError
from gputopo.values.option import Given, Option, OptionsOf

if TYPE_CHECKING:
    from gputopo.cli.hosts.fleet import FleetOutput
    from gputopo.findings import Inspection
    from gputopo.report.document import Document
    from gputopo.report.machine.inspection import Detail
    from gputopo.values.machine import Machine

Shape = Literal["table", "json", "markdown", "prometheus", "scontrol"]
FailOn = Literal["warning", "error"]
INTERVAL_S = 1.0
MIN_INTERVAL_S = 0.1  # below it sampling itself costs what it should see
MAX_SECONDS = 366 * 86400.0  # beyond some hundred years no clock can be set


def inspect(
    *,
    sources: Annotated[tuple[str, ...], FROM] = (),
    record: Annotated[
        Path | None,
        Option(
            "--record",
            "Also write the machine to a file that --from reads",
            detail="with --fleet a folder, with a file of each host",
        ),
    ] = None,
    shape: Annotated[
        Shape,
        Option(
            "--format",
            "Output format: markdown for bug reports, prometheus for a textfile collector; with --fleet also "
            "scontrol: commands of Slurm that drain hosts with faults",
        ),
    ] = "table",
    diff: Annotated[
        str | None,
        Option(
            "--diff",
            "Show what differs from another recording or capture",
            detail="of this machine or of another one",
            value="OTHER",
        ),
    ] = None,
    fleet: Annotated[
        bool,
        Option(
            "--fleet",
            "Compare several hosts, and name those that differ",
            detail="the hosts of several --from files, or those of --hosts or the starter (srun)",
        ),
    ] = False,
    baseline: Annotated[
        Path | None,
        Option(
            "--baseline",
            "Also show what changed on each host since a recording",
            detail="with --fleet; the folder that --record wrote",
            value="FOLDER",
            more=True,
        ),
    ] = None,
    hosts: Annotated[Given, OptionsOf(HostOptions)],
    gpu: Annotated[
        int | None,
        Option("--gpu", "Show one GPU: all its facts and findings", letter="-i", min=0),
    ] = None,
    topology: Annotated[
        bool, Option("--topology", "Show the topology matrix, PCI tree and network ports")
    ] = False,
    all_: Annotated[bool, Option("--all", "Show everything, with all remedies")] = False,
    watch: Annotated[bool, Option("--watch", "Sample clocks, power and links until Ctrl-C")] = False,
    interval: Annotated[
        float | None,
        Option(
            "--interval",
            "Time between two samples of --watch",
            value="TIME",
            unit="s",
            default=f"{INTERVAL_S:g}",
            min=MIN_INTERVAL_S,
            max=MAX_SECONDS,
            more=True,
        ),
    ] = None,
    duration: Annotated[
        float | None,
        Option(
            "--duration",
            "End --watch after this time",
            value="TIME",
            unit="s",
            min=0,
            max=MAX_SECONDS,
            more=True,
        ),
    ] = None,
    fail_on: Annotated[
        FailOn | None,
        Option(
            "--fail-on", "Exit with 1 on a finding this severe or worse", detail="differences do not count"
        ),
    ] = None,
    identities: Annotated[
        bool,
        Option(
            "--identities",
            "Include host name, UUIDs and user names",
            detail="in output and recordings; the table of --all always names the users of processes",
        ),
    ] = False,
) -> int:
    """Show what is wrong with this machine, its GPUs, and how they are connected.

    Exit codes: 0 fine; 1 findings at or above --fail-on, or copies that corrupt data; 2 bad input; 3 an
    NVIDIA device is there and its driver does not work, or there is nothing to watch.
    """
    fleet = fleet or (bool(hosts.typed) and hosts.fields.get("num_hosts") != 1)
    if watch:
        from gputopo.cli.watch import watch as watch_gpus

        every = default_interval(duration) if interval is None else interval
        return watch_gpus(every, duration, shape, fail_on)
    if fleet:
        from gputopo.cli.hosts.fleet import FleetOutput

        return _inspect_fleet(sources, hosts, FleetOutput(shape, fail_on, record, baseline))
    if shape == "scontrol" or baseline is not None:
        what = "--baseline" if baseline is not None else "--format scontrol"
        raise UsageError(
            f"{what} is for several hosts", "add --fleet, or --hosts LIST; of one host: --diff FILE"
        )
    detail: Detail | None = "all" if all_ else "topology" if topology else gpu
    return _inspect_once(sources, record, shape, diff, fail_on, detail, identities=identities)


def _inspect_fleet(sources: tuple[str, ...], hosts: Given, output: "FleetOutput") -> int:
    from gputopo.cli.hosts.asking import hosts_to_ask
    from gputopo.cli.hosts.fleet import fleet, fleet_of_hosts

    options = HostOptions(**hosts.fields)
    asked = None if sources else hosts_to_ask(options)
    if asked is None:
        return fleet(sources, output)
    return fleet_of_hosts(asked, options, output) if asked else ExitCode.OK


def default_interval(duration_s: float | None) -> float:
    """Return the default seconds between two samples: a watch shorter than that has a second one."""
    return INTERVAL_S if not duration_s else max(min(INTERVAL_S, duration_s), MIN_INTERVAL_S)


def _inspect_once(
    sources: tuple[str, ...],
    record: Path | None,
    shape: Shape,
    diff: str | None,
    fail_on: FailOn | None,
    detail: "Detail | None",
    *,
    identities: bool,
) -> int:
    old = None if diff is None else _old_machine(diff, sources)
    with begin(sources) as read:
        from gputopo import findings
        from gputopo.topology.identities import without_identities
        from gputopo.topology.peer_access import with_reasons
        from gputopo.values import schema

        whole = with_reasons(read())
    if isinstance(detail, int) and detail not in [gpu.index for gpu in whole.gpus]:
        known = ", ".join(str(gpu.index) for gpu in whole.gpus) or "none"
        raise UsageError(f"there is no GPU {detail}", f"the GPUs of this machine: {known}")
    machine = whole if identities else without_identities(whole)
    inspection = findings.Inspection(machine=machine, findings=findings.find(machine))
    if record is not None:
        schema.write(record, machine)
    if old is not None:
        _print_difference(old, whole, shape)
    else:
        # The terminal shows whose processes use the GPUs; what is passed on does not, unless asked.
        shown = findings.Inspection(machine=whole, findings=inspection.findings)
        _print(shown if shape == "table" else inspection, shape, detail)
    if not sources and findings.driver_broken(machine) is not None:  # a capture's is a finding as any other
        return ExitCode.HARDWARE
    if findings.fails(inspection.findings, fail_on):
        return ExitCode.FINDINGS
    return ExitCode.OK


def _print(inspection: "Inspection", shape: str, detail: "Detail | None") -> None:
    if shape == "prometheus":
        from gputopo.report.prometheus import exposition

        emit(exposition(inspection))
        return

    def document() -> "Document":
        from gputopo.report.machine.inspection import inspection_document  # loads what JSON does not need

        return inspection_document(inspection, detail)

    show_report(inspection, document, shape)


def _print_difference(old: "Machine", new: "Machine", shape: str) -> None:
    from gputopo.findings.difference import difference
    from gputopo.report.fleet import difference_document

    found = difference(old, new)
    show_report(found, lambda: difference_document(found), shape)


def _old_machine(diff: str, sources: tuple[str, ...]) -> "Machine":
    """Return the machine to compare with. Raises InputError, UsageError for options that clash."""
    if diff == "-" and "-" in sources:
        raise UsageError("standard input can be read only once", "give - to --from or to --diff, not both")
    return machine_from([diff])
