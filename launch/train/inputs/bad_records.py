"""Records that cannot be used: the first one stops the run, or all are left out and counted."""

from pathlib import Path
from typing import Literal

from gputopo.values.errors import InputError

_NAMED = 3  # how many are named in what is said
# Bad records come again in each pass. So many passes without one whole batch: hardly anything is good.
_PASSES = 50


class BadRecords:
    """What was found so far. `policy`: stop or skip."""

    def __init__(self, policy: Literal["stop", "skip"]) -> None:
        self._policy = policy
        self._found: dict[tuple[Path, int], str] = {}
        self._again = 0
        self.took_places = False
        self.error: InputError | None = None

    @property
    def skips(self) -> bool:
        """Whether they are left out, and the run goes on."""
        return self._policy == "skip"

    @property
    def count(self) -> int:
        """How many different records were left out."""
        return len(self._found)

    def note(self, path: Path, record: int, why: str, *, in_order: bool = False) -> None:
        """Take note of record `record` (from 0) of a file.

        `in_order`: it has a place in the order of the examples, so that `took_places` from now on.
        Raises InputError where one stops the run, or where hardly any record is good.
        """
        if self._policy == "stop":
            raise self._failed(
                f"{path}, record {record}: {why}",
                "get the file anew, or leave such records out with --bad-records skip",
            )
        self.took_places = self.took_places or in_order
        self._again += (path, record) in self._found
        self._found.setdefault((path, record), why)
        if self._again > _PASSES * self.count:
            raise self._failed(
                f"{path.parent} gives no batch: {self.says[0]}",
                "get the files anew, or use a smaller --batch-size",
            )

    def _failed(self, what: str, hint: str) -> InputError:
        """Give the first error: TensorFlow may read on after it, and find more."""
        self.error = self.error or InputError(what, hint)
        return self.error

    def batch_made(self) -> None:
        """Take note that good records came."""
        self._again = 0

    @property
    def says(self) -> tuple[str, ...]:
        """What must be said with the result: nothing, or how many records were left out, and the first."""
        if not self._found:
            return ()
        named = [
            f"{path.name} record {record} ({why})"
            for (path, record), why in list(self._found.items())[:_NAMED]
        ]
        more = ", ..." if self.count > _NAMED else ""
        plural = "record was" if self.count == 1 else "records were"
        return (f"{self.count} bad {plural} left out: {', '.join(named)}{more}.",)
