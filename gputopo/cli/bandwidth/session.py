"""The measuring of `gputopo bandwidth`: the session, and what is shown while it goes."""

from typing import TYPE_CHECKING

from gputopo.cli.printing import tell
from gputopo.report.layout import plain

if TYPE_CHECKING:
    from gputopo.cli.bandwidth.options import Wish
    from gputopo.values.bandwidth import Bandwidth
    from gputopo.values.machine import Machine


def measure_links(wish: "Wish", machine: "Machine") -> "Bandwidth":
    """Measure the links of this machine. Ctrl-C ends it with what there is, `complete` False.

    Where no GPU could be measured, why is said on stderr, and what was measured is given.
    """
    from gputopo.cli.bandwidth.progress import ProgressLine
    from gputopo.copies.jobs import Request
    from gputopo.probes.session.measuring import NoGpuMeasuredError, measure

    request = Request(gpus=wish.gpus, level=wish.level, numa=wish.numa)
    try:
        with ProgressLine() as line:
            return measure(machine, request, line.tell)
    except NoGpuMeasuredError as error:
        tell(f"gputopo: {plain(error.what)}\n  {plain(error.hint)}\n")
        return error.bandwidth
