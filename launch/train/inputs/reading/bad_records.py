"""Records that cannot be used: the first one stops the run, or all are left out and counted."""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Literal

import msgspec

from gputopo.launch.data.folder import bad_record
from gputopo.values.errors import InputError

Policy = Literal["stop", "skip"]
_NAMED = 3  # in the notice
# Bad records come again in each pass. After so many passes without one whole batch hardly anything is good.
_MAX_PASSES = 50


class Found(msgspec.Struct, frozen=True):
    """Record `record` (from 0) of a file is bad.

    `in_order`: it has a place in the order of the examples. `host`: that alone looks at it, as the example is
    one of its own; None: any.
    """

    file: str
    record: int
    why: str
    in_order: bool = False
    host: str | None = None


class BadRecords:
    """The bad records found so far. `policy`: stop or skip."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._found: dict[tuple[Path, int], Found] = {}
        self._told = 0  # of them, as `news`
        self._again = 0
        self.error: InputError | None = None

    @property
    def skips(self) -> bool:
        """Whether they are left out, and the run goes on."""
        return self.policy == "skip"

    @property
    def count(self) -> int:
        """Number of different records left out."""
        return len(self._found)

    @property
    def took_places(self) -> bool:
        """Whether one has a place in the order of the examples."""
        return any(found.in_order for found in list(self._found.values()))

    @property
    def files(self) -> set[Path]:
        """The files that they are in."""
        return {path for path, _ in list(self._found)}

    @property
    def notices(self) -> tuple[str, ...]:
        """Nothing, or how many records were left out, with the first of them."""
        if not self._found:
            return ()
        named = ", ".join(_named(found) for found in list(self._found.values())[:_NAMED])
        more = ", ..." if self.count > _NAMED else ""
        plural = "record was" if self.count == 1 else "records were"
        return (f"{self.count} bad {plural} left out: {named}{more}.",)

    def note(self, path: Path, record: int, why: str, *, in_order: bool = False) -> None:
        """Count record `record` (from 0) of a file as bad. `in_order`: as of `Found`.

        Raises InputError where one bad record stops the run, or where hardly any record is good.
        """
        if self.policy == "stop":
            raise self._failed(bad_record(path, record, why))
        self._again += (path, record) in self._found
        self._found.setdefault((path, record), Found(str(path), record, why, in_order))
        if self._again > _MAX_PASSES * self.count:
            raise self._failed(
                InputError(
                    f"{path.parent} has no full batch: {self.notices[0]}",
                    "download the files again, or use a smaller --batch-size",
                )
            )

    def add(self, there: Iterable[Found], host: str) -> None:
        """Add what another host found. Most are found by each host, which reads all files."""
        for found in there:
            own = msgspec.structs.replace(found, host=host if found.in_order else None)
            self._found.setdefault((Path(found.file), found.record), own)

    def news(self) -> tuple[Found, ...]:
        """Return those that were found since the last call."""
        fresh = tuple(islice(list(self._found.values()), self._told, None))
        self._told += len(fresh)
        return fresh

    def batch_made(self) -> None:
        """Restart the count of passes: good records were read."""
        self._again = 0

    def _failed(self, error: InputError) -> InputError:
        """Return the first error: TensorFlow may read on after it, and find more."""
        self.error = self.error or error
        return self.error


def _named(found: Found) -> str:
    where = "" if found.host is None else f" on host {found.host}"
    return f"{Path(found.file).name} record {found.record}{where} ({found.why})"
