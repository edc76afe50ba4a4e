"""Why several hosts train with these GPUs, and what their network costs, in sentences. Pure."""

from collections.abc import Sequence

from gputopo.planner.hosts.joint import Joint
from gputopo.planner.request import HOST_PS
from gputopo.values.index_ranges import index_ranges
from gputopo.values.option import listed
from gputopo.values.run.plan import SURE_MARGIN, Candidate

_NAMED = 8  # hosts in one sentence


def gpus_of_hosts(
    names: Sequence[str], choices: Sequence[Candidate], near: Sequence[Sequence[str]]
) -> list[str]:
    """Return the GPUs of each host and how far apart they are, those alike together; `near`: to its card."""
    alike: dict[str, list[str]] = {}
    for name, choice, cards in zip(names, choices, near, strict=True):
        if choice.gpus:
            apart = choice.reasons[:1] if len(choice.gpus) > 1 else ()
            words = "; ".join((_gpus(choice), *apart, *cards))
            alike.setdefault(words, []).append(name)
    return [f"{_hosts(of)}: {words}" for words, of in alike.items()]


def scaling(chosen: Candidate, alone: Candidate, first: str) -> list[str]:
    """Return how many times as fast as the first host alone all are, and the network's part of a step."""
    if chosen.images_per_sec is None or chosen.step_ms is None:
        return []
    network = chosen.exposed_ms.get("network", 0.0)
    cost = f"the network takes {network:.1f} ms of a step of {chosen.step_ms:.1f} ms"
    if not alone.images_per_sec:
        return [cost]
    times = chosen.images_per_sec / alone.images_per_sec
    return [
        f"{len(chosen.hosts)} hosts are {times:.2f} times as fast as {_gpus(alone)} of {first} "
        f"alone ({alone.images_per_sec:.0f} images/sec); {cost}"
    ]


def fewer_hosts(chosen: Candidate, steps: Joint, alone: Candidate) -> list[str]:
    """Return which number of hosts, the first of these, would be as fast; none where none is."""
    if (chosen.ps_device or "").startswith(HOST_PS):
        return []  # that host must take part
    least = (1 - SURE_MARGIN) * (chosen.images_per_sec or 0.0)
    for count in range(1, len(chosen.hosts)):
        if count == 1:
            speed = alone.images_per_sec or 0.0
        else:
            speed = steps.of_first(count).candidate(chosen).images_per_sec or 0.0
        if speed > least:
            devices = sum(one.devices for one in chosen.hosts[:count])
            names = _hosts([one.host for one in chosen.hosts[:count]])
            how = "faster" if speed > (chosen.images_per_sec or 0.0) else "as fast"
            return [
                f"{names} alone would be {how}: {speed:.0f} instead of {chosen.images_per_sec:.0f} "
                f"images/sec (--num-gpus {devices})"
            ]
    return []


def _gpus(choice: Candidate) -> str:
    return f"GPU{'' if len(choice.gpus) == 1 else 's'} {index_ranges(sorted(choice.gpus))}"


def _hosts(names: Sequence[str]) -> str:
    if len(names) > _NAMED:
        return f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED} more"
    return listed(names, "and")
