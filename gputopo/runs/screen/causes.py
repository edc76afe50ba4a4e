"""Why a device alone is slower than its peer: the causes of a run, over rounds in the place of steps. Pure.

Rounds are too few to fit a slope, so a cause explains at most what it can cost by physics. What reaches both
devices alike, such as a busy host, counts with the difference between them.
"""

import math
from collections.abc import Mapping, Sequence

from gputopo.runs.causes import facts as fact
from gputopo.runs.causes.explain import explained_view
from gputopo.runs.causes.rules import CAUSES, GPU, View
from gputopo.runs.verdict.peers import COMPUTE
from gputopo.values.run.autotune import Timed
from gputopo.values.run.screen import Reading
from gputopo.values.run.verdict import Causes

OF_GPU = {
    fact.CORE: "graphics_mhz",
    fact.MEMORY: "memory_mhz",
    fact.THROTTLED_POWER: "throttled_power",
    fact.THROTTLED_THERMAL: "throttled_thermal",
    fact.THROTTLED_HARDWARE: "throttled_hardware",
    fact.LINK: "link_gb_per_s",
    fact.OTHERS: "other_processes",
}
OF_HOST = {fact.HOST_CPU: "host_cpu", fact.HOST_SWAP: "host_swap"}
# A device alone takes the whole step: what slows its computing, and what its weights arrive over.
RULES = tuple(
    rule
    for rule in CAUSES
    if GPU in rule.devices and rule.id != "memory-full" and (COMPUTE in rule.parts or rule.id == "pcie-link")
)


class Rounds:
    """What two devices read in the same rounds, as `gputopo.runs.causes.rules.Source`."""

    def __init__(self, readings: Mapping[int, Sequence[Reading]], own: int, peer: int) -> None:
        self._readings = readings
        self._own, self._peer = own, peer

    def of_gpu(self, tower: int, which: int, /) -> list[float]:
        """Return a fact of a device's GPU, by round."""
        return [_value(one, OF_GPU[which]) for one in self._readings[tower]]

    def of_host(self, tower: int, which: int, /) -> list[float]:
        """Return by how much a fact of the host was more in the device's run than in the peer's, by round."""
        name = OF_HOST[which]
        both = zip(self._readings[self._own], self._readings[self._peer], strict=True)
        found = [_value(own, name) - _value(peer, name) for own, peer in both]
        return [more if math.isnan(more) else max(0.0, more) for more in found]


def causes_of(
    own: int,
    peer: int,
    readings: Mapping[int, Mapping[int, Reading]],
    speeds: Mapping[int, Mapping[int, Timed]],
    percent: float,
) -> Causes:
    """Return the causes of a device that is `percent` slower than its peer.

    `readings`, `speeds`: by device and round; one round of both at least.
    """
    rounds = sorted(speeds[own].keys() & speeds[peer].keys())
    listed = {one: [readings[one].get(number, Reading()) for number in rounds] for one in (own, peer)}
    view = View(
        facts=Rounds(listed, own, peer),
        tower=own,
        peer=peer,
        part=COMPUTE,
        rows=range(len(rounds)),
        gap=[
            math.log(speeds[peer][number].images_per_sec / speeds[own][number].images_per_sec)
            for number in rounds
        ],
        waits=[_value(one, "weights_share") for one in listed[own]],
    )
    return explained_view(view, range(len(rounds)), percent, RULES)


def _value(reading: Reading, name: str) -> float:
    found = getattr(reading, name)
    return math.nan if found is None else found
