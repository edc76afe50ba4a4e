"""Supervises workers: starts them, reads their events, records their end, and leaves no process behind.

`workers` starts a worker and watches it to its end, by `WorkerLimits`; a `Record` keeps its events. Each name
loads its module when it is used.
"""

from typing import TYPE_CHECKING

from gputopo.public_names import exports

if TYPE_CHECKING:
    from gputopo.launch.supervise.alarm import Alarm as Alarm
    from gputopo.launch.supervise.cgroup import oom_kills as oom_kills
    from gputopo.launch.supervise.cgroup import usable_cpus as usable_cpus
    from gputopo.launch.supervise.event_lines import EventLines as EventLines
    from gputopo.launch.supervise.event_lines import NotAnEventError as NotAnEventError
    from gputopo.launch.supervise.job import Workers as Workers
    from gputopo.launch.supervise.job import workers as workers
    from gputopo.launch.supervise.record import Looks as Looks
    from gputopo.launch.supervise.record import Record as Record
    from gputopo.launch.supervise.run_folder import EventLog as EventLog
    from gputopo.launch.supervise.run_folder import RunFolder as RunFolder
    from gputopo.launch.supervise.run_folder import create_run_folder as create_run_folder
    from gputopo.launch.supervise.run_folder import save_result as save_result
    from gputopo.launch.supervise.sample_scalars import SampleScalars as SampleScalars
    from gputopo.launch.supervise.sampling import EventQueue as EventQueue
    from gputopo.launch.supervise.signals import EndedError as EndedError
    from gputopo.launch.supervise.signals import caught as caught
    from gputopo.launch.supervise.signals import deferred as deferred
    from gputopo.launch.supervise.signals import raised as raised
    from gputopo.launch.supervise.watchdog import PROGRAM_PATIENCE as PROGRAM_PATIENCE
    from gputopo.launch.supervise.watchdog import HangLimits as HangLimits
    from gputopo.launch.supervise.watchdog import Watchdog as Watchdog
    from gputopo.launch.supervise.watchdog import hang_limits as hang_limits
    from gputopo.launch.supervise.watchdog import is_stuck as is_stuck
    from gputopo.launch.supervise.watchdog import process_words as process_words
    from gputopo.launch.supervise.worker_life import WorkerLimits as WorkerLimits
    from gputopo.launch.supervise.worker_life import answer_to_signal as answer_to_signal
    from gputopo.launch.supervise.worker_output import WorkerOutput as WorkerOutput
    from gputopo.launch.supervise.worker_process import OwnChildren as OwnChildren
    from gputopo.launch.supervise.worker_process import WorkerProcess as WorkerProcess

_MODULES = {
    "Alarm": "alarm",
    "EndedError": "signals",
    "EventLines": "event_lines",
    "EventLog": "run_folder",
    "EventQueue": "sampling",
    "HangLimits": "watchdog",
    "Looks": "record",
    "NotAnEventError": "event_lines",
    "OwnChildren": "worker_process",
    "PROGRAM_PATIENCE": "watchdog",
    "Record": "record",
    "RunFolder": "run_folder",
    "SampleScalars": "sample_scalars",
    "Watchdog": "watchdog",
    "WorkerLimits": "worker_life",
    "WorkerOutput": "worker_output",
    "WorkerProcess": "worker_process",
    "Workers": "job",
    "answer_to_signal": "worker_life",
    "caught": "signals",
    "create_run_folder": "run_folder",
    "deferred": "signals",
    "hang_limits": "watchdog",
    "is_stuck": "watchdog",
    "oom_kills": "cgroup",
    "process_words": "watchdog",
    "raised": "signals",
    "save_result": "run_folder",
    "usable_cpus": "cgroup",
    "workers": "job",
}
__all__ = [*_MODULES]
__getattr__ = exports(__name__, _MODULES)
