"""Past results of this box: `gputopo.result/1` documents by machine, in order of time."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from gputopo.runs.history.file import exists, is_empty, opened
from gputopo.runs.history.identity import fingerprint
from gputopo.values import schema
from gputopo.values.machine import Machine
from gputopo.values.run.result import Result


class StoredResult(msgspec.Struct, frozen=True, kw_only=True):
    """A result of the history. `finished_at`: seconds since the epoch; `folder`: of its run, perhaps gone.

    `fingerprint`: of the machine that it ran on.
    """

    result: Result
    finished_at: float
    folder: str
    fingerprint: str


def add(path: Path, machine: Machine, result: Result, *, folder: str, finished_at: float) -> bool:
    """Add a result; return whether the machine can be identified, so that it was added.

    Raises InputError where the file cannot be written; nothing is lost then.
    """
    key = fingerprint(machine)
    if key is None:
        return False
    model = str(result.spec.get("model", ""))
    row = (key, finished_at, folder, model, schema.encode(result))
    with opened(path, write=True) as connection:
        connection.execute(
            "INSERT INTO result (fingerprint, finished_at, folder, model, document) VALUES (?, ?, ?, ?, ?)",
            row,
        )
    return True


def stored(
    path: Path, *, machine: str | None = None, model: str | None = None, since: float | None = None
) -> Iterator[StoredResult]:
    """Iterate over results, oldest first. `machine`: a fingerprint; None: of any machine, model or time.

    Raises InputError for a file that cannot be read.
    """
    if not exists(path):
        return
    with opened(path, write=False) as connection:
        if is_empty(connection, "result"):
            return
        wanted = {"fingerprint = ?": machine, "model = ?": model, "finished_at >= ?": since}
        asked = {condition: value for condition, value in wanted.items() if value is not None}
        where = f" WHERE {' AND '.join(asked)}" if asked else ""
        rows = connection.execute(
            f"SELECT document, finished_at, folder, fingerprint FROM result{where} ORDER BY finished_at, id",
            tuple(asked.values()),
        )
        for document, finished_at, folder, key in rows:
            result = schema.decode(document, Result, origin=str(path))
            yield StoredResult(result=result, finished_at=finished_at, folder=folder, fingerprint=key)
