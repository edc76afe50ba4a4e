"""The latest saved measurement of the network between hosts."""

from collections.abc import Sequence

from gputopo.launch.hosts.messages import Joining
from gputopo.planner import Request, SavedNetwork
from gputopo.report import note
from gputopo.values.errors import GputopoError


def saved_network(hosts: Sequence[Joining], request: Request) -> SavedNetwork | None:
    """Return the saved measurement of the network between these hosts; its use is printed to stderr."""
    from gputopo.runs import BoxHistory

    if request.no_history:
        return None
    try:
        saved = BoxHistory().latest_network({host.name for host in hosts})
    except GputopoError as error:
        note(f"planned without the measured network: {error.what}")
        return None
    if saved is None:
        return None
    note(f"with the network measured on {saved.date}")
    return SavedNetwork(saved.bandwidth, f"on {saved.date}")
