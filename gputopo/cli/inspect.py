"""`gputopo inspect`: what this machine is, and what is wrong with it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gputopo.cli.choices import require_choice, shape_of
from gputopo.cli.printing import emit, show
from gputopo.cli.source import FromOption, machine_from
from gputopo.values.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from gputopo.findings import Inspection, Severity
    from gputopo.values.machine import Machine

FORMATS = ("table", "json", "markdown", "prometheus")
DIFF_FORMATS = ("table", "json", "markdown")
WATCH_FORMATS = ("table", "json")
FAIL_ON: "tuple[Severity, ...]" = ("warning", "error")


def inspect(
    sources: FromOption = None,
    record: Annotated[
        Path | None,
        typer.Option("--record", metavar="FILE", help="Also write the machine to a file that --from reads."),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="|".join(FORMATS),
            help="How to print: markdown for bug reports, prometheus for a textfile collector.",
            show_default="table",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    diff: Annotated[
        str | None,
        typer.Option(
            "--diff", metavar="OLD", help="Say in a line each what changed since a recording or capture."
        ),
    ] = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Show clocks, power, heat and links over time; Ctrl-C ends it."),
    ] = False,
    interval: Annotated[
        str | None,
        typer.Option("--interval", metavar="SECONDS", help="Time between two readings of --watch (1)."),
    ] = None,
    duration: Annotated[
        str | None,
        typer.Option("--duration", metavar="SECONDS", help="End --watch by itself after so long."),
    ] = None,
    fail_on: Annotated[
        str | None,
        typer.Option(
            "--fail-on",
            metavar="|".join(FAIL_ON),
            help="Exit with 1 on a finding this severe; differences do not count.",
        ),
    ] = None,
    identities: Annotated[
        bool,
        typer.Option(
            "--identities",
            help="Keep UUIDs and user names in what is printed and recorded (the table always names users).",
        ),
    ] = False,
) -> int:
    """Show the host, the GPUs, how they are connected, what is wrong, and what could not be read.

    Exit codes: 0 fine; 1 findings at or above --fail-on; 2 bad input; 3 an NVIDIA device is there and its
    driver does not work, or there is nothing to watch.
    """
    shape = shape_of(output, FORMATS, json=json)
    worst = None if fail_on is None else require_choice("--fail-on", fail_on, FAIL_ON)
    if watch:
        _refuse_beside_watch(sources, record, diff, identities=identities)
        _require_shape(shape, WATCH_FORMATS, "--watch")
        from gputopo.cli.watch import watch as watch_gpus

        return watch_gpus(interval, duration, shape, worst)
    if interval is not None or duration is not None:
        raise UsageError("--interval and --duration are of --watch", "give --watch with them")
    return _inspect_once(sources or [], record, shape, diff, worst, identities)


def _inspect_once(
    sources: list[str],
    record: Path | None,
    shape: str,
    diff: str | None,
    worst: "Severity | None",
    identities: bool,
) -> int:
    from gputopo import findings
    from gputopo.topology.identities import without_identities
    from gputopo.topology.peer_access import with_reasons
    from gputopo.values import schema

    old = None if diff is None else _old_machine(diff, sources, shape)
    whole = with_reasons(machine_from(sources))
    machine = whole if identities else without_identities(whole)
    inspection = findings.Inspection(machine=machine, findings=findings.find(machine))
    if record is not None:
        schema.write(record, machine)
    if old is not None:
        _print_difference(old, whole, shape)
    elif shape == "table":
        # One's own screen shows whose processes hold the GPUs; what is passed on does not, unless asked.
        _show_table(findings.Inspection(machine=whole, findings=inspection.findings))
    else:
        _print(inspection, shape)
    if findings.driver_broken(machine) is not None:
        return ExitCode.HARDWARE
    if worst is not None and findings.reaches(inspection.findings, worst):
        return ExitCode.FINDINGS
    return ExitCode.OK


def _print(inspection: "Inspection", shape: str) -> None:
    if shape == "json":
        from gputopo.values import schema

        emit(schema.encode_pretty(inspection))
    elif shape == "markdown":
        from gputopo.report.markdown import markdown

        emit(markdown(inspection))
    else:
        from gputopo.report.metrics.prometheus import exposition

        emit(exposition(inspection))


def _show_table(inspection: "Inspection") -> None:
    from gputopo.cli.terminal import for_this_stdout
    from gputopo.report.findings import inspection_view

    show(lambda width: for_this_stdout(inspection_view(inspection, width)))


def _print_difference(old: "Machine", new: "Machine", shape: str) -> None:
    from gputopo.findings.difference import difference

    found = difference(old, new)
    if shape == "json":
        from gputopo.values import schema

        emit(schema.encode_pretty(found))
        return
    from gputopo.report.difference import difference_markdown, difference_view

    if shape == "markdown":
        emit(difference_markdown(found))
    else:
        show(lambda width: difference_view(found, width))


def _old_machine(diff: str, sources: list[str], shape: str) -> "Machine":
    """Read what to compare with. Raises InputError, and UsageError where the options do not fit together."""
    _require_shape(shape, DIFF_FORMATS, "--diff")
    if diff == "-" and "-" in sources:
        raise UsageError("standard input can be read only once", "give - to --from or to --diff, not both")
    return machine_from([diff])


def _require_shape(shape: str, shapes: tuple[str, ...], option: str) -> None:
    if shape not in shapes:
        raise UsageError(f"{option} cannot print {shape}", f"give --format {' or '.join(shapes)}")


def _refuse_beside_watch(
    sources: list[str] | None, record: Path | None, diff: str | None, *, identities: bool
) -> None:
    others = {
        "--from": bool(sources),
        "--record": record is not None,
        "--diff": diff is not None,
        "--identities": identities,
    }
    for option, given in others.items():
        if given:
            raise UsageError(
                f"--watch and {option} do not go together",
                "leave out one of them: --watch shows this machine as time goes by",
            )
