"""Measures copies. `Measuring` opens CUDA and NVML and runs a session of `jobs`.

`gputopo.probes.measure_watched` does so in a child process. Each name loads its module when it is used.
"""

from typing import TYPE_CHECKING

from gputopo.public_names import exports

if TYPE_CHECKING:
    from gputopo.probes.session.budget import Effort as Effort
    from gputopo.probes.session.budget import Speeds as Speeds
    from gputopo.probes.session.budget import choose_effort as choose_effort
    from gputopo.probes.session.budget import sizes as sizes
    from gputopo.probes.session.conditions import Meter as Meter
    from gputopo.probes.session.host_memory import HostMemoryRates as HostMemoryRates
    from gputopo.probes.session.host_memory import measure_host_memory as measure_host_memory
    from gputopo.probes.session.measured_job import measure_job as measure_job
    from gputopo.probes.session.measuring import Doors as Doors
    from gputopo.probes.session.measuring import Measuring as Measuring
    from gputopo.probes.session.measuring import bandwidth_of as bandwidth_of
    from gputopo.probes.session.measuring import check as check
    from gputopo.probes.session.session import Results as Results

_MODULES = {
    "Doors": "measuring",
    "Effort": "budget",
    "HostMemoryRates": "host_memory",
    "Measuring": "measuring",
    "Meter": "conditions",
    "Results": "session",
    "Speeds": "budget",
    "bandwidth_of": "measuring",
    "check": "measuring",
    "choose_effort": "budget",
    "measure_host_memory": "host_memory",
    "measure_job": "measured_job",
    "sizes": "budget",
}
__all__ = [*_MODULES]
__getattr__ = exports(__name__, _MODULES)
