"""`gputopo report`: tables and observations from runs, logs of other programs, and published figures."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from gputopo.cli.printing import emit, show, to_stderr
from gputopo.report.document import document_lines, document_markdown
from gputopo.report.layout import text_of
from gputopo.values.errors import ExitCode, InputError, UsageError
from gputopo.values.option import Option

if TYPE_CHECKING:
    from gputopo.measurements.study import Study
    from gputopo.report.document import Document

PublishedName = Literal["tensorpack", "tf-official", "lambda-cpu", "keras-multi-gpu"]
FailOn = Literal["warning", "error"]
FILE_WIDTH = 120  # columns of a table that is written to a file


def report(
    runs: Annotated[
        tuple[str, ...],
        Option(
            "[RUNS...]",
            "Run folders, sweeps, folders of runs, result.json, or what report --json wrote; by default the "
            "runs of this user",
            repeated=True,
        ),
    ] = (),
    imported: Annotated[
        tuple[str, ...],
        Option(
            "--import",
            "Also these: logs of tf_cnn_benchmarks or tensorpack, folders of Lambda's benchmarks, CSV "
            "tables. Repeatable",
            value="PATH",
            repeated=True,
        ),
    ] = (),
    published: Annotated[
        PublishedName | None,
        Option("--published", "Make the tables of a published document anew, with the errors that it has"),
    ] = None,
    baseline: Annotated[
        tuple[str, ...],
        Option(
            "--baseline",
            "Compare with these earlier runs of the same machine: folders, or what report --json wrote. "
            "Repeatable",
            value="PATH",
            repeated=True,
        ),
    ] = (),
    shape: Annotated[
        Literal["table", "markdown", "html", "json", "csv"],
        Option("--format", "Output format"),
        Option("--json", "Same as --format json", const="json"),
    ] = "table",
    output: Annotated[
        Path | None, Option("--output", "Write it to this file, whole or not at all", default="stdout")
    ] = None,
    fail_on: Annotated[
        FailOn | None,
        Option(
            "--fail-on",
            "Exit with 1 on a run that failed (an error), or that is slower than in --baseline under the "
            "same conditions (a warning)",
        ),
    ] = None,
) -> int:
    """Show what runs measured: scaling, ratios, comparisons, and what follows from them, with the numbers.

    Runs that failed are shown with their reasons. Only runs under the same conditions are compared; figures
    that were published for the same GPU model stand beside them.

    Exit codes: 0 fine; 1 findings at or above --fail-on; 2 bad input.
    """
    if published is not None:
        if runs or imported or baseline:
            raise UsageError(
                "--published cannot be combined with runs",
                "the published figures of a GPU stand beside its runs without it: leave it out",
            )
        from gputopo.measurements.documents.made import made

        study = made(published)
    else:
        study = _study((*runs, *imported), baseline)
    if output is not None:
        _write(output, _text(study, shape, published))
    elif shape == "table":
        document = _document(study, published)
        show(lambda width: document_lines(document, width))
    else:
        emit(_text(study, shape, published))
    return _exit_code(study, fail_on)


def _study(paths: tuple[str, ...], baseline: tuple[str, ...]) -> "Study":
    """Return the study of all paths, or of the runs of this user."""
    from gputopo.captures.training.files import read
    from gputopo.measurements.documents.published import known_machines, published_measurements
    from gputopo.measurements.run_folders import RunFolders
    from gputopo.measurements.study import Unread, study_of
    from gputopo.reference.published import SOURCES

    paths = paths or (_home(),)
    ours = RunFolders()
    found = read(paths, read_run=ours.run, read_json=ours.document)
    before = read(baseline, read_run=ours.run, read_json=ours.document)
    if not found.measurements:
        raise InputError(
            f"there are no measurements in {', '.join(paths[:3])}",
            "name run folders of gputopo, or logs with --import: gputopo explain report",
        )
    if found.passed:
        files = f"{found.passed} other file{'s' if found.passed > 1 else ''}"
        to_stderr(f"gputopo: {files} passed over: neither logs of training nor runs\n")
    study = study_of(
        found.measurements,
        title="Training throughput",
        machines={**known_machines(), **ours.machines},
        earlier=before.measurements,
        references=published_measurements(),
        unread=[Unread(source=name, why=why) for name, why in (*found.unread, *before.unread)],
    )
    return _with_sources(study, SOURCES)


def _with_sources(study: "Study", sources: Mapping[str, str]) -> "Study":
    """Return the study with the publications that its figures are compared with."""
    import msgspec

    names = dict.fromkeys(
        row.reference.removeprefix("published: ") for row in study.figures.against if row.kind == "published"
    )
    return msgspec.structs.replace(study, sources={name: sources[name] for name in names})


def _home() -> str:
    """Return the folder of the user's runs. Raises InputError where there are none."""
    from gputopo.launch.supervise.run_folder import runs_home

    home = runs_home(os.environ)
    if not Path(home).is_dir():
        raise InputError(
            f"there are no runs in {home}",
            "name run folders, logs with --import, or a document with --published",
        )
    return str(home)


def _document(study: "Study", published: str | None) -> "Document":
    from gputopo.report.study.document import study_document
    from gputopo.report.study.published import published_document

    return study_document(study) if published is None else published_document(published, study)


def _text(study: "Study", shape: str, published: str | None) -> str:
    """Return the report in a form for a file."""
    if shape == "json":
        from gputopo.values import schema

        return schema.encode_pretty(study)
    if shape == "csv":
        from gputopo.report.study.csv_form import study_csv

        return study_csv(study)
    document = _document(study, published)
    if shape == "html":
        from gputopo.report.page import page

        return page(document)
    if shape == "markdown":
        return document_markdown(document)
    return text_of(document_lines(document, FILE_WIDTH))


def _write(path: Path, text: str) -> None:
    """Write a file, whole or not at all. Raises InputError."""
    from gputopo.values.schema import replacing

    with replacing(path) as file:
        file.write(text.encode())


def _exit_code(study: "Study", fail_on: FailOn | None) -> int:
    if fail_on is not None and (study.has_failed or study.unread):
        return ExitCode.FINDINGS
    return ExitCode.FINDINGS if fail_on == "warning" and study.has_regression else ExitCode.OK
