"""Each GPU compared with the others of its model: what lasts, what passes at the same load, and errors."""

from gputopo.findings import clocks as load
from gputopo.findings import memory_health as errors
from gputopo.findings.peers import facts

__all__ = ["errors", "facts", "load"]
