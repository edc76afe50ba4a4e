"""What a run delivers elsewhere while it lasts: metrics, anomalies, and samples for TensorBoard."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from gputopo.launch.supervise.alarm import Alarm
from gputopo.launch.supervise.metrics_file import MetricsFile
from gputopo.launch.supervise.sample_scalars import SampleScalars
from gputopo.launch.supervise.worker_process import OwnChildren
from gputopo.report import note
from gputopo.values.run.events import Event
from gputopo.values.run.options import OutputOptions


@contextlib.contextmanager
def delivering(options: OutputOptions, ours: OwnChildren | None = None) -> Iterator[Callable[[Event], None]]:
    """Yield a function that delivers each event of one run: --prometheus, --on-anomaly, --tensorboard.

    `ours`: gets the processes that are started for it. What cannot be delivered is reported once on stderr.
    """
    with contextlib.ExitStack() as open_files:
        scalars = open_files.enter_context(contextlib.closing(SampleScalars(note)))
        deliver = [scalars.event]
        if options.prometheus is not None:
            deliver.append(MetricsFile(Path(options.prometheus), note).event)
        if options.on_anomaly is not None:
            alarm = open_files.enter_context(contextlib.closing(Alarm(options.on_anomaly, note, ours)))
            deliver.append(alarm.event)

        def on_event(event: Event) -> None:
            for each in deliver:
                each(event)

        yield on_event
