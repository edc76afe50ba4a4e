"""Evaluates the events of a run: its result, throughput and slow devices; and the history of this box.

`summarise`, or a `Summary` while a run lasts, makes the result of a run from its events. `RecentSteps` and
`Reports` judge the devices during a run. `known_before` is what a run is judged by; `with_prediction`,
`judge_input` and `with_alone` compare its result with what was predicted and with earlier runs, which are in
the `BoxHistory`. `RunReadings` and `device_rows` evaluate the short runs of a screen.
"""

from typing import TYPE_CHECKING

from gputopo.public_names import exports

if TYPE_CHECKING:
    from gputopo.runs.alone import with_alone as with_alone
    from gputopo.runs.compared import with_prediction as with_prediction
    from gputopo.runs.devices import batch_sizes as batch_sizes
    from gputopo.runs.history import BoxHistory as BoxHistory
    from gputopo.runs.history import Past as Past
    from gputopo.runs.history import Saved as Saved
    from gputopo.runs.history import data_folder as data_folder
    from gputopo.runs.input_verdict import judge_input as judge_input
    from gputopo.runs.known import known_before as known_before
    from gputopo.runs.live import RecentSteps as RecentSteps
    from gputopo.runs.live import Reports as Reports
    from gputopo.runs.over_time import read_over_time as read_over_time
    from gputopo.runs.past_runs import measured_before as measured_before
    from gputopo.runs.repeats import combine_repeats as combine_repeats
    from gputopo.runs.screen import RunReadings as RunReadings
    from gputopo.runs.screen import device_rows as device_rows
    from gputopo.runs.summary import STOPPED_FROM_OUTSIDE as STOPPED_FROM_OUTSIDE
    from gputopo.runs.summary import Summary as Summary
    from gputopo.runs.summary import summarise as summarise
    from gputopo.runs.verdict.judge import Judgement as Judgement

_MODULES = {
    "BoxHistory": "history",
    "Judgement": "verdict.judge",
    "Past": "history",
    "RecentSteps": "live",
    "Reports": "live",
    "RunReadings": "screen",
    "STOPPED_FROM_OUTSIDE": "summary",
    "Saved": "history",
    "Summary": "summary",
    "batch_sizes": "devices",
    "combine_repeats": "repeats",
    "data_folder": "history",
    "device_rows": "screen",
    "judge_input": "input_verdict",
    "known_before": "known",
    "measured_before": "past_runs",
    "read_over_time": "over_time",
    "summarise": "summary",
    "with_alone": "alone",
    "with_prediction": "compared",
}
__all__ = [*_MODULES]
__getattr__ = exports(__name__, _MODULES)
