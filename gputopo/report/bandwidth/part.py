"""One part of a bandwidth report, ready for text or Markdown."""

from typing import NamedTuple

from gputopo.report.layout import Column


class Part(NamedTuple):
    """A title; rows of a label and words; or a table (`head` names its rows); remarks under it.

    `groups`: columns that stay together where the screen is narrow.
    """

    title: str
    rows: tuple[tuple[str, str], ...] = ()
    head: Column | None = None
    groups: tuple[tuple[Column, ...], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show."""
        return not self.rows and not any(self.groups) and (self.head is not None or not self.notes)
