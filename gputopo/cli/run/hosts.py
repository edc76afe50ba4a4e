"""Hosts of a training by the core: one."""

from collections.abc import Mapping

from gputopo.launch.hosts.allocation import find
from gputopo.launch.hosts.options import HostOptions
from gputopo.values.errors import UsageError


def refuse_several_hosts(options: HostOptions, environ: Mapping[str, str]) -> None:
    """Raise UsageError where this process is one of several that were started as one training.

    Each would train a model of its own, on its own examples, and nobody would be told.
    """
    found = find(options, environ)
    if found is not None:
        raise UsageError(
            f"{found.source} has {found.size} hosts, and gputopo run trains on one",
            "start it on one host, or add --num-hosts 1 to train a model of its own on each of them",
        )
