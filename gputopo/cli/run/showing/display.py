"""Progress of runs on the terminal, in a file of metrics, and told to who asked for news of anomalies."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gputopo.cli.printing import is_lost_terminal, note, tolerating_stderr_errors, unwritten
from gputopo.cli.run.options import Shape
from gputopo.launch.supervise.alarm import Alarm
from gputopo.launch.supervise.scalars import SampleScalars
from gputopo.values.errors import InputError

if TYPE_CHECKING:
    from gputopo.cli.run.showing.metrics_file import MetricsFile
    from gputopo.values.run.events import Event


class RunDisplay:
    """Progress of runs on stderr and, where they are the output, log lines on stdout.

    Progress that cannot be written is dropped. Log lines that cannot be are an error: `require_written`.
    """

    def __init__(
        self,
        shape: Shape,
        display_every: int | None,
        predicted: Sequence[str] = (),
        prometheus: str | None = None,
        on_anomaly: str | None = None,
    ) -> None:
        """`display_every`: steps between two lines, None: seconds decide. `predicted`: lines at the start.

        `prometheus`: the file for the metrics of each run. `on_anomaly`: what is told of anomalies.
        """
        self._prometheus = prometheus
        self._on_anomaly = on_anomaly
        self._prints_log = shape == "tf-cnn-log"
        self._every = display_every
        self._predicted = predicted
        self._unwritten: InputError | None = None

    @contextlib.contextmanager
    def one_run(self) -> "Iterator[Callable[[Event], None]]":
        """Return the function to call with each event of a run."""
        from gputopo.report.runs.progress import Progress
        from gputopo.report.runs.tf_cnn_log import DISPLAY_EVERY, TfCnnLog

        log = TfCnnLog(self._every or DISPLAY_EVERY) if self._prints_log else None
        metrics = self._metrics_file()
        with contextlib.ExitStack() as stack:
            # It ends before the display: what it reports is shown.
            progress = stack.enter_context(Progress(display_every=self._every))
            alarm = None if self._on_anomaly is None else Alarm(self._on_anomaly, note)
            if alarm is not None:
                stack.callback(alarm.close)
            scalars = stack.enter_context(contextlib.closing(SampleScalars(note)))

            def on_event(event: "Event") -> None:
                with tolerating_stderr_errors():
                    progress.event(self._with_prediction(event))
                if metrics is not None:
                    metrics.event(event)
                if alarm is not None:
                    alarm.event(event)
                scalars.event(event)
                if log is not None:
                    self._print(log.lines(event))

            yield on_event

    def _metrics_file(self) -> "MetricsFile | None":
        if self._prometheus is None:
            return None
        from gputopo.cli.run.showing.metrics_file import MetricsFile

        return MetricsFile(Path(self._prometheus), note)

    def require_written(self) -> None:
        """Raise InputError if log lines could not be written."""
        if self._unwritten is not None:
            raise self._unwritten

    def _with_prediction(self, event: "Event") -> "Event":
        from gputopo.values.run.events import RunStarted

        if not (self._predicted and isinstance(event, RunStarted)):
            return event
        return msgspec.structs.replace(event, says=(*event.says, *self._predicted))

    def _print(self, lines: Sequence[str]) -> None:
        if self._unwritten is not None:
            return
        try:
            for line in lines:
                print(line, flush=True)
        except BrokenPipeError:
            raise  # the reader has closed the pipe
        except OSError as error:
            if not is_lost_terminal(error):
                self._unwritten = unwritten(error)
