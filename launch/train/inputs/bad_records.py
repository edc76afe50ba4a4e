"""Records that cannot be used: the first one stops the run, or all are left out and counted."""

from pathlib import Path
from typing import Literal

from gputopo.launch.data.folder import bad_record
from gputopo.values.errors import InputError

_NAMED = 3  # in the notice
# Bad records come again in each pass. After so many passes without one whole batch hardly anything is good.
_MAX_PASSES = 50


class BadRecords:
    """The bad records found so far. `policy`: stop or skip."""

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
        """Number of different records left out."""
        return len(self._found)

    @property
    def notices(self) -> tuple[str, ...]:
        """Nothing, or how many records were left out, with the first of them."""
        if not self._found:
            return ()
        named = [
            f"{path.name} record {record} ({why})"
            for (path, record), why in list(self._found.items())[:_NAMED]
        ]
        more = ", ..." if self.count > _NAMED else ""
        plural = "record was" if self.count == 1 else "records were"
        return (f"{self.count} bad {plural} left out: {', '.join(named)}{more}.",)

    def note(self, path: Path, record: int, why: str, *, in_order: bool = False) -> None:
        """Count record `record` (from 0) of a file as bad.

        `in_order`: it has a place in the order of the examples, which sets `took_places`.
        Raises InputError where one bad record stops the run, or where hardly any record is good.
        """
        if self._policy == "stop":
            raise self._failed(bad_record(path, record, why))
        self.took_places = self.took_places or in_order
        self._again += (path, record) in self._found
        self._found.setdefault((path, record), why)
        if self._again > _MAX_PASSES * self.count:
            raise self._failed(
                InputError(
                    f"{path.parent} has no full batch: {self.notices[0]}",
                    "download the files again, or use a smaller --batch-size",
                )
            )

    def batch_made(self) -> None:
        """Restart the count of passes: good records were read."""
        self._again = 0

    def _failed(self, error: InputError) -> InputError:
        """Return the first error: TensorFlow may read on after it, and find more."""
        self.error = self.error or error
        return self.error
