"""`gputopo report --history`: the past runs and bandwidths of this machine, and what is worse since when."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import msgspec

from gputopo.values.errors import InputError, UsageError
from gputopo.values.option import Option

if TYPE_CHECKING:
    from gputopo.measurements.box import Box


class PastOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to show of this machine's history."""

    THEME = "History"

    history: Annotated[
        bool,
        Option(
            "--history",
            "Show the past runs and saved bandwidths of this machine instead, and what is worse since when",
        ),
    ] = False
    model: Annotated[str | None, Option("--model", "Only runs of this model", value="NAME")] = None
    since: Annotated[str | None, Option("--since", "Only what is not older than this", value="DATE")] = None


def history_of(model: str | None, since: str | None) -> "Box":
    """Return the history of this machine. `since`: a date, 2026-11-01.

    Raises InputError where there is none, or the file cannot be read; UsageError for what is no date.
    """
    from gputopo.cli.source import machine_from
    from gputopo.measurements.box import box_of
    from gputopo.measurements.from_ours import of_result
    from gputopo.measurements.run_folders import machine_name
    from gputopo.runs.history import fingerprint, history_file, stored_bandwidths, stored_results

    begin = None if since is None else _date(since)
    machine = machine_from(())
    key = fingerprint(machine)
    if key is None:
        raise InputError(
            "this machine cannot be identified, so it has no history",
            "gputopo inspect shows what could not be read: PCI addresses of the GPUs, or the CPU's model",
        )
    file = history_file()
    name = machine_name(machine)
    names = {gpu.index: gpu.name for gpu in machine.gpus if gpu.name}
    runs = [
        of_result(
            one.result,
            source=one.folder,
            machine=name,
            cpu=machine.host.cpu_model,
            gpus=names,
            time_s=one.finished_at,
        )
        for one in stored_results(file, machine=key, model=model, since=begin)
    ]
    bandwidths = [] if model is not None else stored_bandwidths(file, machine)
    bandwidths = [one for one in bandwidths if begin is None or one.saved_at >= begin]
    if not runs and not bandwidths:
        raise InputError(
            f"{file} has nothing of this machine{' that was asked for' if model or since else ''}",
            "gputopo run adds its results, gputopo bandwidth --save its rates",
        )
    return box_of(name, runs, bandwidths)


def _date(text: str) -> float:
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
    except ValueError as error:
        raise UsageError(f"--since {text} is no date", "write --since 2026-11-01") from error
