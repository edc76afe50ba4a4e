"""Drills over several hosts: n1, n2 and so on, whose GPUs have the same numbers."""

from collections.abc import Callable, Sequence

import msgspec

from gputopo.values.run.events import NETWORK, Device, gpu_key
from gputopo.values.run.verdict import Known
from tests.invented_runs import cpu_devices, gpu_devices, on_hosts
from tests.kit.drills.box import POWER_CAP, THERMAL, Box, Card, Host, always, since
from tests.kit.drills.table import Dice, Drill, box_with, percent_of


def _hosts(dice: Dice, *, least: int = 2) -> tuple[Device, ...]:
    """Two to four hosts with the same number of GPUs each."""
    each = dice.whole(4, least, 6)
    return on_hosts(*(gpu_devices(each) for _ in range(dice.whole(2, 2, 4))))


def _box(dice: Dice, devices: Sequence[Device], **changes: object) -> Box:
    return box_with(dice, **{"devices": devices, "steps": dice.short, **changes})


def _of(devices: Sequence[Device], rank: int) -> list[int]:
    return [device.tower for device in devices if device.rank == rank]


def _same_number(dice: Dice) -> Drill:
    """GPUs with the same number on two hosts: one has a power cap; the other is slow, cause unknown."""
    devices = _hosts(dice, least=3)
    first, second = _of(devices, 0)[1], _of(devices, 1)[1]
    capped = Card(core=dice.number(0.85, 0.75, 0.9), throttle=POWER_CAP)
    hidden = Card(hidden=dice.number(0.88, 0.75, 0.92))
    box = _box(dice, devices, cards={first: always(capped), second: always(hidden)})
    percents = {first: percent_of(capped, box), second: percent_of(hidden, box)}
    return Drill(box, slow={first: "power-cap", second: ""}, percent=percents, says="! n2 GPU 1 (")


def _shared_link_of_another_host(dice: Dice) -> Drill:
    """Two cards of n2 behind one uplink, while each card of n1 has its own."""
    devices, cause = on_hosts(gpu_devices(2), gpu_devices(4), hop="host"), "pcie-shared"
    box = _box(dice, devices, weights_s=dice.number(0.03, 0.025, 0.05))
    box.known = Known(sharing={4: (5,), 5: (4,)})
    box.cards = {tower: always(Card(link=0.5)) for tower in (4, 5)}
    return Drill(box, slow={4: cause, 5: cause}, percent={4: 15.0, 5: 15.0}, says="! n2 GPU 2 (")


def _memory_full_on_another_host(dice: Dice) -> Drill:
    """The memory of GPU 1 of n2 is full; it has less memory than GPU 1 of n1."""
    devices = on_hosts(gpu_devices(3), gpu_devices(3))
    box = _box(dice, devices)
    sizes = (80_000, 40_960)
    box.known = Known(memory_mib={gpu_key(one.rank, one.gpu): sizes[one.rank] for one in devices})
    card = Card(hidden=dice.number(0.88, 0.8, 0.93), used_mib=40_700)
    box.cards = {4: always(card)}
    return Drill(box, slow={4: "memory-full"}, percent={4: percent_of(card, box)}, says="! n2 GPU 1 (")


def _slow_host_since(dice: Dice) -> Drill:
    devices, step = _hosts(dice), dice.whole(130, 120, 280)
    own = _of(devices, 1)
    hot = Card(core=dice.number(0.85, 0.75, 0.88), throttle=THERMAL, temperature=90)
    box = _box(
        dice, devices, steps=dice.whole(260, 400, 400), cards={tower: since(step, hot) for tower in own}
    )
    percents = dict.fromkeys(own, percent_of(hot, box))
    slow: dict[int, str | None] = dict.fromkeys(own, "thermal")
    return Drill(box, slow=slow, percent=percents, since=step, host="n2", says="On n2 GPU")


def _all_but_one(dice: Dice) -> Drill:
    """If one GPU of a host is as fast as other hosts' GPUs, the slow ones are reported one by one."""
    devices, percent = _hosts(dice, least=3), dice.number(15, 9, 25)
    own = _of(devices, 1)[1:]
    box = _box(dice, devices, cards={tower: always(Card(hidden=1 - percent / 100)) for tower in own})
    return Drill(box, slow=dict.fromkeys(own, ""), percent=dict.fromkeys(own, percent), says="! n2 GPU 1 (")


def _network(dice: Dice) -> Drill:
    """Variables on n1: the weights take longer over the network to n3 than to n2."""
    each = dice.whole(4, 2, 6)
    devices = on_hosts(*(gpu_devices(each) for _ in range(3)), hop=NETWORK)
    devices = tuple(
        one if one.rank else msgspec.structs.replace(one, hop_to_variables="host") for one in devices
    )
    waits = [0.012 if one.rank == 0 else 0.030 if one.rank == 1 else 0.060 for one in devices]
    box = _box(dice, devices, weights_s=waits)
    own = _of(devices, 2)
    percent = 100 * 0.030 / (box.compute_s + 0.060)
    return Drill(
        box,
        slow=dict.fromkeys(own),
        percent=dict.fromkeys(own, percent),
        host="n3",
        says="wait longer for weights from the network",
    )


def _busy_host(dice: Dice) -> Drill:
    """Other programs use the cores of n2: a device that looks slow there is not judged; devices of n1 are."""
    devices, load = _hosts(dice), Host(other_cpu=0.6, run_cpu=0.5, queue=20)
    own = _of(devices, 1)
    card = always(Card(hidden=0.8))
    box = _box(dice, devices, cards=dict.fromkeys((*own, 0), card), hosts={1: lambda step: load})
    percent = {0: 20.0}
    return Drill(box, slow={0: ""}, percent=percent, untold=tuple(own), why="on n2 other programs")


def _cpu_devices(dice: Dice) -> Drill:
    devices, percent = on_hosts(cpu_devices(2), cpu_devices(2)), dice.number(20, 12, 30)
    box = _box(dice, devices, backend="cpu", cards={3: always(Card(hidden=1 - percent / 100))})
    return Drill(box, slow={3: None}, percent={3: percent}, says="! n2 CPU 1 computes")


HOST_DRILLS: dict[str, Callable[[Dice], Drill]] = {
    "hosts: one number, two reasons": _same_number,
    "hosts: shared link on another host": _shared_link_of_another_host,
    "hosts: full memory on another host": _memory_full_on_another_host,
    "hosts: a host too warm from a step on": _slow_host_since,
    "hosts: all but one of a host slow": _all_but_one,
    "hosts: network": _network,
    "hosts: a busy host": _busy_host,
    "hosts: CPU devices": _cpu_devices,
}
