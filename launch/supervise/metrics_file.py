"""`--prometheus`: writes the metrics of a run to a file while it runs."""

from collections.abc import Callable
from pathlib import Path

from gputopo.report import RunMetrics
from gputopo.values import schema
from gputopo.values.errors import InputError
from gputopo.values.run.events import Event, RunFinished

EVERY_S = 5.0  # Not measured; chosen because collectors read every 15 s or less often; a write takes 1 ms.


class MetricsFile:
    """Writes the metrics of a run every few seconds, when an event comes, and at its end.

    If the file cannot be written, `on_problem` reports it once, and no more writes are tried.
    """

    def __init__(self, path: Path, on_problem: Callable[[str], None]) -> None:
        self._path: Path | None = path
        self._on_problem = on_problem
        self._metrics = RunMetrics()
        self._next_s = 0.0

    def event(self, event: Event) -> None:
        """Add the next event of the run."""
        self._metrics.add(event)
        # If the clock was set back, the file must still be written.
        due = event.time_s >= self._next_s or event.time_s < self._next_s - EVERY_S
        if self._path is None or not (due or isinstance(event, RunFinished)):
            return
        self._next_s = event.time_s + EVERY_S
        try:
            schema.make_folder(self._path.parent)
            with schema.replacing(self._path) as stream:
                stream.write(self._metrics.text().encode())
        except InputError as error:
            self._path = None
            self._on_problem(error.what)
