"""`gputopo inspect`: what this machine is, and what is wrong with it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gputopo.cli.choices import require_choice
from gputopo.cli.printing import emit, show
from gputopo.cli.source import FromOption, machine_from
from gputopo.errors import ExitCode

if TYPE_CHECKING:
    from gputopo.findings import Inspection, Severity

FORMATS = ("table", "json")
FAIL_ON: "tuple[Severity, ...]" = ("warning", "error")


def inspect(
    sources: FromOption = None,
    record: Annotated[
        Path | None,
        typer.Option("--record", metavar="FILE", help="Also write the machine to a file that --from reads."),
    ] = None,
    output: Annotated[
        str, typer.Option("--format", metavar="|".join(FORMATS), help="How to print.")
    ] = "table",
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    fail_on: Annotated[
        str | None,
        typer.Option("--fail-on", metavar="|".join(FAIL_ON), help="Exit with 1 on a finding this severe."),
    ] = None,
    identities: Annotated[
        bool, typer.Option("--identities", help="Keep UUIDs and user names in the JSON and the recording.")
    ] = False,
) -> int:
    """Show the host, the GPUs, how they are connected, what is wrong, and what could not be read.

    Exit codes: 0 fine; 1 findings at or above --fail-on; 2 bad input; 3 an NVIDIA device is there and its
    driver does not work.
    """
    shape = "json" if json else require_choice("--format", output, FORMATS)
    worst = None if fail_on is None else require_choice("--fail-on", fail_on, FAIL_ON)
    from gputopo import findings, schema
    from gputopo.machine import without_identities

    machine = machine_from(sources or ())
    if not identities:
        machine = without_identities(machine)
    inspection = findings.Inspection(machine=machine, findings=findings.find(machine))
    if record is not None:
        schema.write(record, machine)
    _print(inspection, shape)
    if findings.driver_broken(machine) is not None:
        return ExitCode.HARDWARE
    if worst is not None and findings.reaches(inspection.findings, worst):
        return ExitCode.FINDINGS
    return ExitCode.OK


def _print(inspection: "Inspection", shape: str) -> None:
    if shape == "json":
        from gputopo import schema

        emit(schema.encode_pretty(inspection))
        return
    from gputopo.report.findings import inspection_view

    show(lambda width: inspection_view(inspection, width))
