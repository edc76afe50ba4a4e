"""Each GPU compared with the others of its model: what lasts, what passes at the same load, and errors."""

from gputopo.findings.peers import errors, facts, load

__all__ = ["errors", "facts", "load"]
