"""What is shown of runs while they go: a place that takes no more text costs the text, never the training."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from gputopo.cli.printing import talking, unwritten, went_with_terminal
from gputopo.cli.run.options import Shape
from gputopo.values.errors import InputError

if TYPE_CHECKING:
    from gputopo.values.events import Event


class Showing:
    """Shows runs as they go: their progress on stderr and, where they are the output, log lines on stdout.

    Progress that cannot be written is lost. Log lines that cannot be are told at the end: `require_written`.
    """

    def __init__(self, shape: Shape, display_every: int) -> None:
        """`display_every`: steps from line to line."""
        self._prints_log = shape == "tf-cnn-log"
        self._every = display_every
        self._unwritten: InputError | None = None

    @contextlib.contextmanager
    def one_run(self) -> "Iterator[Callable[[Event], None]]":
        """Give what is to be called with each event of a run."""
        from gputopo.report.runs.progress import Progress
        from gputopo.report.runs.tf_cnn_log import TfCnnLog

        log = TfCnnLog(self._every) if self._prints_log else None
        with Progress(display_every=self._every) as progress:

            def on_event(event: "Event") -> None:
                with talking():
                    progress.event(event)
                if log is not None:
                    self._print(log.lines(event))

            yield on_event

    def require_written(self) -> None:
        """Raise InputError if log lines could not be written."""
        if self._unwritten is not None:
            raise self._unwritten

    def _print(self, lines: Sequence[str]) -> None:
        if self._unwritten is not None:
            return
        try:
            for line in lines:
                print(line, flush=True)
        except BrokenPipeError:
            raise  # whoever reads has read enough
        except OSError as error:
            if not went_with_terminal(error):
                self._unwritten = unwritten(error)
