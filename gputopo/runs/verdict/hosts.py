"""Hosts that are slow as a whole: what all their devices show alike is of the host. Pure."""

import math
from collections.abc import Mapping, Sequence
from statistics import median, median_low

import msgspec

from gputopo.runs.verdict import words
from gputopo.runs.verdict.devices import is_cpu, short_name_of
from gputopo.runs.verdict.thresholds import SLOW_PERCENT
from gputopo.values.run.events import Device
from gputopo.values.run.verdict import SLOW, Verdict


def whole_hosts(devices: Sequence[Device], slow: Mapping[int, object]) -> dict[int, tuple[Device, ...]]:
    """Return the hosts, by rank, of which two devices or more, and all, are slow alike, with their devices.

    `slow`: in what a device is slow, by tower. A host with one device is named by its device.
    """
    by_rank: dict[int, list[Device]] = {}
    for device in devices:
        by_rank.setdefault(device.rank, []).append(device)
    if len(by_rank) < 2:
        return {}
    return {
        rank: tuple(own)
        for rank, own in by_rank.items()
        if len(own) > 1
        and all(device.tower in slow for device in own)
        and len({slow[device.tower] for device in own}) == 1
    }


def named_by_host(devices: Sequence[Device], verdicts: Mapping[int, Verdict]) -> dict[int, Verdict]:
    """Return the verdicts by tower, those of a host that is slow as a whole with one sentence on the host.

    A device that is slower still than the host by what counts as slow keeps its own.
    """
    slow = {
        tower: (found.part, found.share_of_steps is not None)
        for tower, found in verdicts.items()
        if found.word == SLOW
    }
    named = dict(verdicts)
    for own in whole_hosts(devices, slow).values():
        found = [verdicts[device.tower] for device in own]
        if max(one.from_step or 0 for one in found) > min(one.to_step or math.inf for one in found):
            continue  # slow one after another
        says = _says(own, found)
        middle = median(one.percent_under_high or 0.0 for one in found)
        for device, one in zip(own, found, strict=True):
            if (one.percent_under_low or 0.0) <= middle + SLOW_PERCENT:
                named[device.tower] = msgspec.structs.replace(one, says=says)
    return named


def host_name(devices: Sequence[Device]) -> str:
    """Return what a slow host is called, with its devices: "host n3: all 4 GPUs"."""
    noun = "CPU devices" if is_cpu(devices[0]) else "GPUs"
    return f"host {devices[0].host}: all {len(devices)} {noun}"


def _says(devices: Sequence[Device], found: Sequence[Verdict]) -> str:
    """Return how much slower the devices of a host are, since when, and their common cause."""
    begins = [one.from_step for one in found if one.from_step is not None]
    ends = [one.to_step for one in found if one.to_step is not None]
    together = msgspec.structs.replace(
        found[0],
        percent_under=median(one.percent_under or 0.0 for one in found),
        percent_under_low=min(one.percent_under_low or 0.0 for one in found),
        from_step=median_low(begins) if len(begins) == len(found) else None,
        to_step=median_low(ends) if len(ends) == len(found) else None,
    )
    says = words.slow_host(host_name(devices), devices[0], together)
    first = {one.causes.found[0].id if one.causes and one.causes.found else None for one in found}
    if len(first) > 1 or None in first:
        return says
    place = sorted(range(len(found)), key=lambda one: found[one].percent_under or 0.0)[len(found) // 2]
    causes = found[place].causes
    assert causes is not None
    return f"{says}. On {short_name_of(devices[place])}: {causes.says}"
