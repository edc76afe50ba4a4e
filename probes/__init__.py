"""Reads the real machine: NVML, /sys, /proc, and copies with CUDA. Installs as gputopo.probes.

`begin_reading` reads a machine, `measure_watched` measures its links, `RunWatch` and `open_watch` sample its
GPUs over time. A `DriverChild` calls a driver that may hang or crash. Each name loads its module when it is
used.
"""

from typing import TYPE_CHECKING

from gputopo.public_names import exports

if TYPE_CHECKING:
    from gputopo.probes.child import CallLimits as CallLimits
    from gputopo.probes.child import CallSlot as CallSlot
    from gputopo.probes.child import Channel as Channel
    from gputopo.probes.child import DriverChild as DriverChild
    from gputopo.probes.child import DriverStop as DriverStop
    from gputopo.probes.collect import begin_reading as begin_reading
    from gputopo.probes.collect import read_tree as read_tree
    from gputopo.probes.collect import read_with as read_with
    from gputopo.probes.collect import with_ports_now as with_ports_now
    from gputopo.probes.copy_jobs import Copy as Copy
    from gputopo.probes.copy_jobs import CopyJob as CopyJob
    from gputopo.probes.copy_jobs import CopyTime as CopyTime
    from gputopo.probes.copy_jobs import CopyWindow as CopyWindow
    from gputopo.probes.copy_jobs import SessionRequest as SessionRequest
    from gputopo.probes.copy_jobs import Setting as Setting
    from gputopo.probes.copy_jobs import describe as describe
    from gputopo.probes.copy_jobs import failure_of as failure_of
    from gputopo.probes.driver import listed_gpus as listed_gpus
    from gputopo.probes.ethtool import max_rate as max_rate
    from gputopo.probes.host_load import HostReader as HostReader
    from gputopo.probes.interface import interface_of as interface_of
    from gputopo.probes.nics import read_network as read_network
    from gputopo.probes.numa import NumaMemory as NumaMemory
    from gputopo.probes.numa import at_once as at_once
    from gputopo.probes.numa import bound_to as bound_to
    from gputopo.probes.nvml.door import NotReadError as NotReadError
    from gputopo.probes.nvml.gpu_watch import open_watch as open_watch
    from gputopo.probes.processes import kill_group as kill_group
    from gputopo.probes.processes import tethered as tethered
    from gputopo.probes.run_watch import RunWatch as RunWatch
    from gputopo.probes.session.measuring import NoGpuMeasuredError as NoGpuMeasuredError
    from gputopo.probes.session.session import SessionProgress as SessionProgress
    from gputopo.probes.session.soak import SoakReadings as SoakReadings
    from gputopo.probes.session.watched import measure_watched as measure_watched
    from gputopo.probes.tensorflow_install import load_cuda_libraries as load_cuda_libraries
    from gputopo.probes.tensorflow_install import read_tensorflow as read_tensorflow

_MODULES = {
    "CallLimits": "child",
    "CallSlot": "child",
    "Channel": "child",
    "Copy": "copy_jobs",
    "CopyJob": "copy_jobs",
    "CopyTime": "copy_jobs",
    "CopyWindow": "copy_jobs",
    "DriverChild": "child",
    "DriverStop": "child",
    "HostReader": "host_load",
    "NoGpuMeasuredError": "session.measuring",
    "NotReadError": "nvml.door",
    "NumaMemory": "numa",
    "RunWatch": "run_watch",
    "SessionProgress": "session.session",
    "SessionRequest": "copy_jobs",
    "Setting": "copy_jobs",
    "SoakReadings": "session.soak",
    "at_once": "numa",
    "begin_reading": "collect",
    "bound_to": "numa",
    "describe": "copy_jobs",
    "failure_of": "copy_jobs",
    "interface_of": "interface",
    "kill_group": "processes",
    "listed_gpus": "driver",
    "load_cuda_libraries": "tensorflow_install",
    "max_rate": "ethtool",
    "measure_watched": "session.watched",
    "open_watch": "nvml.gpu_watch",
    "read_network": "nics",
    "read_tensorflow": "tensorflow_install",
    "read_tree": "collect",
    "read_with": "collect",
    "tethered": "processes",
    "with_ports_now": "collect",
}
__all__ = [*_MODULES]
__getattr__ = exports(__name__, _MODULES)
