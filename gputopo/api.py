"""The Python API: `import gputopo`, then `gputopo.inspect()` and so on. See `gputopo explain python`.

Each function calls the command of the same name. Options have the names and defaults of the command line,
with underscores. Errors have the same two lines.
"""

import contextlib
import html
import io
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from gputopo.values import schema
from gputopo.values.errors import GputopoError, UsageError
from gputopo.values.finding import Inspection as InspectionDocument
from gputopo.values.machine import Gpu, Machine
from gputopo.values.run.measurement import Measurement
from gputopo.values.run.plan import Plan as PlanDocument
from gputopo.values.run.result import Result as ResultDocument

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Inspection", "Plan", "Result", "Runs", "inspect", "load", "load_runs", "plan", "run"]

Option = str | int | float | bool | Path | Sequence[str | int] | None
"""The value of an option. True: the flag. False, None: not given. A sequence: `0,1`, or the option repeated.
"""

Document = TypeVar("Document", bound=msgspec.Struct)


class Inspection(InspectionDocument, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.inspect/1"):
    """A machine and its findings. `repr` is the first line of `gputopo inspect`."""

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs of the machine, by index."""
        return self.machine.gpus

    def __repr__(self) -> str:
        from gputopo.findings import checks_made
        from gputopo.report import inspection_document

        return inspection_document(self, checks=checks_made(self.machine)).answer

    def _repr_html_(self) -> str:
        """Return the first line and the table of the GPUs, for notebooks."""
        from gputopo.report import inspection_document

        tables = "".join(_html_table(table.heads, table.rows) for table in inspection_document(self).tables)
        return f"<p>{html.escape(repr(self))}</p>{tables}"


class _ThisMachine(Inspection, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.inspect/1"):
    """An inspection of this machine. For it, `plan` uses the machine's claims and earlier runs."""


class Plan(PlanDocument, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.plan/1"):
    """The chosen GPUs and placement, with reasons. `repr` is the first line of `gputopo plan`."""

    def __repr__(self) -> str:
        from gputopo.report import plan_document

        return plan_document(self).answer


class Result(ResultDocument, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.result/1"):
    """The result of a run. `repr` is the first line of `gputopo run`."""

    def __repr__(self) -> str:
        from gputopo.report import run_document

        return run_document(self).answer


def inspect(*sources: str | Path, identities: bool = False) -> Inspection:
    """Read and check this machine, or the machine of captures, as `gputopo inspect` does.

    `sources`: files that `gputopo inspect --from` reads. `identities`: include host name, serial numbers and
    UUIDs in the result. Raises GputopoError.
    """
    words = [*_from(sources), *_words("inspect", {"identities": identities}), "--json"]
    return _document("inspect", words, Inspection if sources else _ThisMachine)


def load(*sources: str | Path) -> Inspection:
    """Read and check the machine of captures: recordings, `nvidia-smi`, bug reports. Raises GputopoError."""
    if not sources:
        raise _with_both_lines(UsageError("nothing to load", "give a capture, or call gputopo.inspect()"))
    return inspect(*sources)


def plan(
    machine: Inspection | Machine | str | Path | None = None,
    model: str = "alexnet",
    *,
    num_gpus: int | str | None = None,
    gpus: str | Sequence[int] | None = None,
    prefer_pix: bool = False,
    batch_size: int | str | None = None,
    precision: str | None = None,
    **options: Option,
) -> Plan:
    """Choose the GPUs of a job and the placement of its variables, as `gputopo plan` does.

    `machine`: None, or the result of `inspect()`, plans for this machine. A capture, its inspection or a
    `Machine` plans for that one. `options`: any other option of `gputopo plan`. Raises GputopoError.
    """
    named = {"num_gpus": num_gpus, "gpus": gpus, "prefer_pix": prefer_pix}
    named |= {"batch_size": batch_size, "precision": precision}
    words = _words("plan", {"model": model, **named, **options})
    with _captured(machine) as sources:
        return _document("plan", [*_from(sources), *words, "--json"], Plan)


def run(
    model: str = "alexnet",
    *,
    num_gpus: int | str | None = None,
    gpus: str | Sequence[int] | None = None,
    prefer_pix: bool = False,
    cpu: bool = False,
    batch_size: int | str | Sequence[int] | None = None,
    num_batches: int | None = None,
    precision: str | None = None,
    output: str | Path | None = None,
    **options: Option,
) -> Result:
    """Train on the planned GPUs, or on CPU devices if there are none, as `gputopo run` does.

    Progress goes to stderr. A training that fails returns its result: see `status` and `failure`. `options`:
    any other option of `gputopo run`, except those that print another document.

    Raises GputopoError if the run cannot start, and UsageError in any thread except the main one, because
    only the main thread can handle signals.
    """
    if other := next((name for name in ("repeats", "dry_run", "format") if options.get(name)), None):
        flag = f"--{other.replace('_', '-')}"
        error = UsageError(
            f"gputopo.run returns one result, without {flag}", f"use gputopo run {flag} instead"
        )
        raise _with_both_lines(error)
    if threading.current_thread() is not threading.main_thread():
        error = UsageError("gputopo.run is called in a thread", "call it in the main thread")
        raise _with_both_lines(error)
    named = {"num_gpus": num_gpus, "gpus": gpus, "prefer_pix": prefer_pix, "cpu": cpu, "output": output}
    named |= {"batch_size": batch_size, "num_batches": num_batches, "precision": precision}
    return _document("run", [*_words("run", {"model": model, **named, **options}), "--json"], Result)


class Runs(tuple[Measurement, ...]):
    """Measured runs, one for each run that could be read."""

    __slots__ = ()

    def to_pandas(self) -> "pd.DataFrame":
        """Return a row for each run and a column for each field. Needs pandas, which you install yourself."""
        import pandas as pd

        return pd.DataFrame([msgspec.to_builtins(measurement) for measurement in self])


def load_runs(*paths: str | Path) -> Runs:
    """Read run folders, sweeps and folders with them, as `gputopo report` does; by default this user's runs.

    Raises GputopoError if there are none.
    """
    from gputopo.values.study import Study

    folders = [str(Path(path).expanduser()) for path in paths]
    study = _document("report", [*folders, "--json"], Study)
    return Runs(measurement for cell in study.figures.cells for measurement in cell.runs)


@contextlib.contextmanager
def _captured(machine: Inspection | Machine | str | Path | None) -> Iterator[Sequence[str | Path]]:
    """Yield the sources that `--from` reads for a machine: none for this machine."""
    if isinstance(machine, str | Path):
        yield [machine]
        return
    if machine is None or isinstance(machine, _ThisMachine):
        yield []
        return
    known = machine.machine if isinstance(machine, InspectionDocument) else machine
    with tempfile.TemporaryDirectory(prefix="gputopo-") as folder:
        file = Path(folder) / "machine.json"
        schema.write(file, known)
        yield [file]


def _from(sources: Sequence[str | Path]) -> list[str]:
    return [word for source in sources for word in ("--from", str(source))]


def _words(command: str, options: dict[str, Option]) -> list[str]:
    """Return the words of a command line for options by name."""
    from gputopo.cli import options_of_command

    repeated = {option.name for option in options_of_command(command) if option.option.repeated}
    words: list[str] = []
    for name, value in options.items():
        flag = f"--{name.rstrip('_').replace('_', '-')}"
        if value is True:
            words.append(flag)
        elif isinstance(value, str | int | float | Path) and value is not False:
            words.append(f"{flag}={value}")
        elif isinstance(value, Sequence):
            texts = [str(part) for part in value]
            words += [f"{flag}={text}" for text in (texts if name in repeated else [",".join(texts)])]
    return words


def _document(command: str, words: Sequence[str], kind: type[Document]) -> Document:
    """Call a command and return the JSON document that it prints. Raises GputopoError."""
    from gputopo.cli import invoke

    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            invoke([command, *words])
    except GputopoError as error:
        raise _with_both_lines(error).with_traceback(None) from None
    return schema.decode(printed.getvalue(), kind, origin=f"gputopo {command}")


def _with_both_lines(error: GputopoError) -> GputopoError:
    """Return the error with what is wrong and what to do in its message."""
    error.args = (f"{error.what}\n{error.hint}",)
    return error


def _html_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def cells(tag: str, row: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row) + "</tr>"

    return f"<table>{cells('th', heads)}{''.join(cells('td', row) for row in rows)}</table>"
