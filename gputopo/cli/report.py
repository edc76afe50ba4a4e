"""`gputopo report`: tables and observations from runs, logs, published figures and the history."""

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from gputopo import __version__
from gputopo.cli.printing import emit, show_report
from gputopo.measurements import RunFolders
from gputopo.report import document_markdown, document_text, markdown_files, note
from gputopo.values.errors import ExitCode, InputError, UsageError
from gputopo.values.option import Option, OptionsOf
from gputopo.values.run.program import PROGRAM

if TYPE_CHECKING:
    from gputopo.report import Document
    from gputopo.values.box import Box
    from gputopo.values.run.measurement import Measurement
    from gputopo.values.study import Study

PublishedName = Literal["tensorpack", "tf-official", "lambda-cpu", "keras-multi-gpu"]
FailOn = Literal["warning", "error"]
Shape = Literal["table", "markdown", "html", "json", "csv"]

_MAX_PICTURED_RUNS = 12  # a page of 5 MB holds no more
_SUFFIXES: Mapping[str, Shape] = {
    "": "table",
    ".txt": "table",
    ".md": "markdown",
    ".markdown": "markdown",
    ".html": "html",
    ".htm": "html",
    ".json": "json",
    ".csv": "csv",
}


class ReportOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to read, what to compare with, and how to show it."""

    runs: Annotated[
        tuple[str, ...],
        Option(
            "[RUNS...]",
            "Run folders, sweeps, folders of runs, result.json, or the output of report --json; default: "
            "the runs of this user",
            repeated=True,
        ),
    ] = ()
    imported: Annotated[
        tuple[str, ...],
        Option(
            "--import",
            "Also read logs of tf_cnn_benchmarks or tensorpack, folders of Lambda's benchmarks, or CSV "
            "tables. Repeatable",
            value="PATH",
            repeated=True,
        ),
    ] = ()
    published: Annotated[
        PublishedName | None,
        Option("--published", "Recompute the tables of a published document from its raw figures"),
    ] = None
    baseline: Annotated[
        tuple[str, ...],
        Option(
            "--baseline",
            "Compare with these earlier runs of the same machine: folders, or the output of report "
            "--json. Repeatable",
            value="PATH",
            repeated=True,
        ),
    ] = ()
    smallest_effect: Annotated[
        float,
        Option(
            "--smallest-effect",
            "Smallest difference from --baseline to report, if it exceeds the noise",
            value="PERCENT",
            min=0,
            below=100,
        ),
    ] = 2.0
    history: Annotated[
        bool,
        Option(
            "--history",
            "Show the history of this machine instead: which runs and bandwidths became worse, and since "
            "when",
            theme="History",
        ),
    ] = False  # of this machine, instead of its runs
    model: Annotated[
        str | None, Option("--model", "Only runs of this model", value="NAME", theme="History")
    ] = None
    since: Annotated[
        str | None, Option("--since", "Only results since this date", value="DATE", theme="History")
    ] = None
    whole: Annotated[
        bool, Option("--all", "Show all rows and observations (always on for files and other formats)")
    ] = False
    shape: Annotated[
        Shape | None,
        Option("--format", "Output format", default="by the suffix of --output, otherwise table"),
    ] = None
    output: Annotated[
        Path | None, Option("--output", "Write the report to this file (atomically)", default="stdout")
    ] = None
    fail_on: Annotated[
        FailOn | None,
        Option(
            "--fail-on",
            "Exit with code 1 if a run failed (error), or is slower than in --baseline under the same "
            "conditions (warning)",
        ),
    ] = None


def _shape(options: ReportOptions) -> Shape:
    """Return the requested format, else the format of the file's suffix.

    Raises UsageError for a suffix without a format, such as .pdf.
    """
    suffix = "" if options.output is None else options.output.suffix.lower()
    if options.shape is None and suffix not in _SUFFIXES:
        raise UsageError(
            f"report cannot write {suffix} files",
            f"use {', '.join(filter(None, _SUFFIXES))}, or add --format",
        )
    return options.shape or _SUFFIXES[suffix]


def history_of(model: str | None, since: str | None) -> "Box":
    """Return the history of this machine. `since`: a date, 2026-11-01.

    Raises InputError if there is none or the file cannot be read, UsageError if `since` is not a date.
    """
    from gputopo.launch import machine_from
    from gputopo.measurements import history_of_box
    from gputopo.runs import BoxHistory
    from gputopo.topology import fingerprint

    begin = None
    if since is not None:
        try:
            begin = datetime.strptime(since, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
        except ValueError as error:
            raise UsageError(f"--since {since} is not a date", "write --since 2026-11-01") from error
    machine = machine_from(())
    if fingerprint(machine) is None:
        raise InputError(
            "this machine cannot be identified, so it has no history",
            "gputopo inspect shows what could not be read: PCI addresses of the GPUs, or the CPU's model",
        )
    history = BoxHistory()
    runs = [
        run
        for run in history.past(model=model, since=begin, limit=None)
        if run.result.rehearsal_of is None and run.result.spec.get("task") != PROGRAM
    ]
    try:
        saved = [*history.bandwidths(machine)]
    except InputError as error:
        note(f"without saved bandwidths, and runs whose folders are gone: {error.what}")
        saved = []
    rates = [rate for rate in saved if model is None and (begin is None or rate.saved_at >= begin)]
    box = history_of_box(machine, runs, rates)
    if not box.runs and not rates:
        wanted = " with --model or --since" if model or since else ""
        others = f"; {box.elsewhere} runs are of other hardware" if box.elsewhere else ""
        raise InputError(
            f"{history.path} has no runs of this machine{wanted}{others}",
            "gputopo run adds its results, gputopo bandwidth --save its rates",
        )
    return box


def report(options: Annotated[ReportOptions, OptionsOf(ReportOptions)]) -> int:
    """Summarize measured runs: best configuration, scaling, ratios, comparisons.

    Runs that failed are shown with their reasons. Only runs under the same conditions are compared. Figures
    published for the same GPU model are shown next to them.

    Exit codes: 0 fine; 1 findings at or above --fail-on; 2 bad input, or nothing to compare with --baseline.
    """
    if options.history:
        return _report_history(options)
    ours = RunFolders()
    if options.published is None:
        study = _study(options, ours)
    else:
        from gputopo.measurements import published_study

        study = published_study(options.published)
    _show(study, lambda pictures: _document(study, ours, pictures=pictures), options)
    if options.fail_on is not None and (study.has_failed or study.unread):
        return ExitCode.FINDINGS
    return ExitCode.FINDINGS if options.fail_on == "warning" and study.has_regression else ExitCode.OK


def _report_history(options: ReportOptions) -> int:
    from gputopo.report import box_document

    box = history_of(options.model, options.since)
    _show(box, lambda pictures: box_document(box, pictures=pictures), options)
    return ExitCode.FINDINGS if options.fail_on == "warning" and box.changes else ExitCode.OK


def _show(value: "Study | Box", document: "Callable[[bool], Document]", options: ReportOptions) -> None:
    """Print a report or write it to a file. `document`: its document, with pictures or without."""
    shape = _shape(options)
    if options.output is not None and shape == "markdown":
        for path, text in markdown_files(document(True), options.output.name).items():
            _write(options.output.parent / path, text)
    elif options.output is not None:
        _write(options.output, _text(value, document, shape))
    elif shape == "table":
        show_report(value, lambda: document(False), shape, whole=options.whole)
    else:
        emit(_text(value, document, shape))


def _study(options: ReportOptions, ours: "RunFolders") -> "Study":
    """Return the study of all paths, or of the runs of this user."""
    from gputopo.captures import encodable, read_measurements
    from gputopo.measurements import compared_study
    from gputopo.values.run.several_runs import MANIFEST
    from gputopo.values.study import UnreadFile

    # The runs of a sweep are in the folder of its manifest.
    paths = tuple(
        str(Path(path).parent) if Path(path).name == MANIFEST and Path(path).is_file() else path
        for path in (*options.runs, *options.imported)
    ) or (_home(),)
    found = read_measurements(paths, read_run=ours.run, read_json=ours.document)
    earlier = RunFolders()
    before = read_measurements(options.baseline, read_run=earlier.run, read_json=earlier.document)
    if not found.measurements:
        why = f": {found.unread[0][1]}" if found.unread else ""
        raise InputError(
            f"there are no measurements in {', '.join(paths[:3])}{why}",
            "give run folders of gputopo, or logs with --import: gputopo explain report",
        )
    if found.passed:
        files = f"{found.passed} other file{'s' if found.passed > 1 else ''}"
        note(f"{files} ignored (not training logs or gputopo runs)")
    unread = (*found.unread, *ours.failed, *before.unread)
    study = compared_study(
        found.measurements,
        machines={**earlier.machines, **ours.machines},
        earlier=before.measurements,
        smallest_effect=options.smallest_effect / 100,
        unfinished=ours.unfinished,
        unread=[UnreadFile(source=encodable(name), why=encodable(why)) for name, why in unread],
    )
    if options.baseline:
        _check_compared(study, before.measurements)
    return study


def _check_compared(study: "Study", earlier: "Sequence[Measurement]") -> None:
    """Raise InputError if no cell could be compared with an earlier one."""
    from gputopo.measurements import not_comparable

    if not any(row.kind == "earlier" for row in study.figures.against):
        cells = study.figures.cells
        why = not_comparable(cells, earlier)
        raise InputError(
            f"0 of {len(cells)} cells compared with --baseline: {why}",
            "give runs of the same machine and job, or remove --baseline",
        )


def _home() -> str:
    """Return the folder of the user's runs. Raises InputError if there are none."""
    from gputopo.launch import runs_home

    home = runs_home(os.environ)
    if not Path(home).is_dir():
        raise InputError(
            f"there are no runs in {home}",
            "give run folders, logs with --import, or a document with --published",
        )
    return str(home)


def _document(study: "Study", ours: "RunFolders", *, pictures: bool) -> "Document":
    """Return the document of a study. `pictures`: include pictures of the most informative runs."""
    from gputopo.report import study_document

    if not pictures:
        return study_document(study)

    return study_document(study, ours.most_telling(_MAX_PICTURED_RUNS), of=len(ours.runs))


def _text(value: "Study | Box", document: "Callable[[bool], Document]", shape: Shape) -> str:
    """Return the report in a format for a file."""
    if shape == "json":
        from gputopo.values import schema

        return schema.encode_pretty(value)
    if shape == "csv":
        from gputopo.report import measured_csv

        return measured_csv(value)
    if shape == "html":
        from gputopo.report import document_html

        return document_html(document(True), _foot(value))
    if shape == "markdown":
        return document_markdown(document(False))
    return document_text(document(False))


def _foot(value: "Study | Box") -> str:
    """Return when a page was written, by which command and version, and for which machines."""
    from gputopo.values.study import Study
    from gputopo.values.words import listed

    machines: list[str | None] = [value.machine] if not isinstance(value, Study) else []
    if isinstance(value, Study):
        machines = list(dict.fromkeys(cell.of.machine for cell in value.figures.cells))
    named = [one for one in machines if one]
    of = f"of {listed(named)}" if named else "of unknown machines"
    command = shlex.join(["gputopo", *sys.argv[1:]])
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, gputopo {__version__}, {of}: {command}"


def _write(path: Path, text: str) -> None:
    """Write a file completely or not at all; its folder is made if necessary. Raises InputError."""
    from gputopo.values import schema

    schema.make_folder(path.parent)
    with schema.replacing(path) as file:
        file.write(text.encode())
