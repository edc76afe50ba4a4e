"""The drills: what is wrong with a box, and what a GPU expert would want to be told.

Each is made by a function of `Dice`: tests use its usual numbers, the benchmark draws random ones.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from gputopo.values.run.events import Device
from tests.invented_runs import gpu_devices
from tests.kit.drills.box import HEALTHY, POWER_CAP, THERMAL, Box, Card, Host, always, since


class Dice:
    """Numbers of a drill: the usual ones, or drawn."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng

    @property
    def short(self) -> int:
        """Number of steps of a drill in which nothing changes."""
        return self.whole(120, 200, 200)

    def number(self, usual: float, low: float, high: float) -> float:
        return usual if self._rng is None else self._rng.uniform(low, high)

    def whole(self, usual: int, low: int, high: int) -> int:
        return usual if self._rng is None else self._rng.randint(low, high)


@dataclass
class Drill:
    """A box, and the requirements for its report.

    `slow`: by tower, the cause that must come first: an id of `runs.verdict.rules`, "" for a gap that must
    not be explained, or None for any cause. All other towers must not be called slow. `percent`: how much
    slower, by tower; a drill below the resolution of a run need not be found. `even`: towers that must be
    called even. `untold`: towers that must not be judged either way. `why`: a word of the reason. `run`: the
    cause by which the run as a whole became slower; None: it must not be called slower. `says`: words of the
    report. `host`: the host that must be called slow as a whole; empty: none may be.
    """

    box: Box
    slow: dict[int, str | None] = field(default_factory=dict)
    percent: dict[int, float] = field(default_factory=dict)
    even: tuple[int, ...] = ()
    untold: tuple[int, ...] = ()
    why: str = ""
    run: str | None = None
    input: str | None = None
    says: str = ""
    host: str = ""
    since: int | None = None


def box_with(dice: Dice, **changes: object) -> Box:
    given = {
        "devices": gpu_devices(dice.whole(4, 3, 8)),
        "steps": dice.whole(260, 400, 400),
        "noise": dice.number(0.01, 0.004, 0.02),
        "common": dice.number(0.02, 0.0, 0.05),
        "memory": dice.number(0.2, 0.0, 0.5),
        "alpha": dice.number(0.85, 0.7, 1.0),
        "compute_s": dice.number(0.12, 0.06, 0.3),
        **changes,
    }
    return Box(**given)  # type: ignore[arg-type]


def percent_of(card: Card, box: Box) -> float:
    """How much slower a card in this state computes, in percent of pace."""
    return 100 * (1 - card.pace(box.alpha, box.beta))


def _slow_card(dice: Dice) -> Drill:
    percent = dice.number(5.5, 5, 20)
    box = box_with(dice, steps=dice.short)
    tower = dice.whole(1, 0, len(box.devices) - 1)
    box.cards = {tower: always(Card(hidden=1 - percent / 100))}
    return Drill(box, slow={tower: ""}, percent={tower: percent})


def _clock_falls(dice: Dice) -> Drill:
    """A core clock that falls during the run and stays low."""
    box, state = box_with(dice), Card(core=dice.number(0.82, 0.72, 0.9))
    step = dice.whole(130, 100, 280)
    tower = dice.whole(2, 0, len(box.devices) - 1)
    box.cards = {tower: since(step, state)}
    return Drill(box, slow={tower: "core-clock"}, percent={tower: percent_of(state, box)}, since=step)


def _partly_the_memory_clock(dice: Dice) -> Drill:
    """Like GPU 1 of the 7gforce table: 5 % less memory clock, 15 % less pace."""
    box = box_with(dice, steps=dice.short, devices=gpu_devices(6))
    card = Card(memory=0.95, hidden=dice.number(0.85, 0.80, 0.88))
    box.cards = {1: always(card), 2: always(Card(memory=0.95, hidden=0.993))}
    return Drill(box, slow={1: "memory-clock"}, percent={1: percent_of(card, box)}, says="unexplained")


def _ramp(dice: Dice) -> Drill:
    box = box_with(dice, steps=dice.whole(440, 700, 700))
    onset, length = dice.whole(200, 200, 350), dice.whole(60, 30, 120)
    deep = dice.number(0.16, 0.10, 0.25)

    def hot(step: int) -> Card:
        share = min(1.0, max(0.0, (step - onset) / length))
        # The card is warm long before the clock falls.
        warm = 66 + min(25, max(0, (step - onset + 150) // 8))
        return Card(core=1 - deep * share, throttle=THERMAL if share else 0, temperature=warm)

    tower = dice.whole(2, 0, len(box.devices) - 1)
    box.cards = {tower: hot}
    percent = 100 * (1 - (1 - deep) ** box.alpha)
    return Drill(box, slow={tower: "thermal"}, percent={tower: percent}, since=onset + length // 2)


def _link_falls(dice: Dice) -> Drill:
    box = box_with(dice)
    step, tower = dice.whole(130, 100, 280), dice.whole(2, 1, len(box.devices) - 1)
    box.cards = {tower: since(step, Card(width=1, gen=3))}
    wait = 0.012 * 16
    percent = 100 * (wait - 0.012) / (box.compute_s + wait)
    return Drill(box, slow={tower: "pcie-link"}, percent={tower: percent}, since=step)


def _clock_and_process(dice: Dice) -> Drill:
    box, begins = box_with(dice, steps=dice.whole(380, 600, 600)), dice.whole(130, 200, 200)

    def card(step: int) -> Card:
        core = 0.85 if step >= begins else 1.0
        others = step % 150 >= 75
        throttle = POWER_CAP if core < 1 else 0
        return Card(core=core, throttle=throttle, busy=0.3 if others else 0.0, others=int(others))

    box.cards = {1: card}
    return Drill(box, slow={1: None}, percent={1: 12.0}, says="another process on the GPU")


def _starved(dice: Dice) -> Drill:
    late_s, step = dice.number(0.05, 0.03, 0.12), dice.whole(130, 120, 250)
    box = box_with(dice, waited_s=lambda now: late_s if now >= step else 0.0005)
    return Drill(box, run="input-starved", input="input")


def _all_from_onset(dice: Dice) -> Drill:
    box, card = box_with(dice), Card(core=dice.number(0.8, 0.7, 0.86), throttle=POWER_CAP)
    step = dice.whole(130, 120, 250)
    box.cards = {tower: since(step, card) for tower in range(len(box.devices))}
    return Drill(box, run="compute-slow")


def _far(dice: Dice) -> Drill:
    """The variables on GPU 0: GPU 1 is behind the same switch, the others across the host bridge."""
    hops = ("local", "PIX", "PHB", "PHB")
    devices = tuple(
        Device(tower=tower, device=f"/GPU:{tower}", gpu=tower, gpu_name="GTX 1070", hop_to_variables=hop)
        for tower, hop in enumerate(hops)
    )
    return Drill(box_with(dice, steps=dice.short, devices=devices, weights_s=(0.002, 0.012, 0.030, 0.031)))


def _lost(dice: Dice) -> Drill:
    box, step = box_with(dice), dice.whole(130, 100, 300)
    box.cards, box.ends_at = {1: since(step, Card(lost=True))}, step + 3
    return Drill(box, says="Failed: ")


def _without_marks(dice: Dice) -> Drill:
    box, step = box_with(dice), dice.whole(130, 100, 300)
    box.cards, box.marks_end = {1: since(step, Card(lost=True))}, {1: step}
    return Drill(box, untold=(1,), why="lost")


def _wrapping(dice: Dice) -> Drill:
    box = box_with(dice, steps=dice.short)
    box.cards = {1: lambda step: Card(replays=(2**32 - 40 + step) % 2**32)}
    return Drill(box)


def _gap(dice: Dice) -> Drill:
    """No samples while the fault starts."""
    box, card = box_with(dice, steps=500), Card(core=dice.number(0.85, 0.75, 0.9), throttle=POWER_CAP)
    step = dice.whole(220, 200, 240)
    box.cards, box.unsampled = {2: since(step, card)}, range(170, 320)
    return Drill(box, slow={2: "power-cap"}, percent={2: percent_of(card, box)}, since=step)


def _clock_set(dice: Dice) -> Drill:
    drill = _clock_falls(dice)
    drill.box.clock_set_s = lambda step: -3600.0 if step > 80 else 0.0
    return drill


def _unsampled(dice: Dice) -> Drill:
    """NVML reports nothing: the verdict stays, but the cause cannot be known."""
    drill = _slow_card(dice)
    drill.box.unsampled = range(-100, 10_000)
    return replace(drill, says="unknown (no samples)")


def _busy_with_a_slow_gpu(dice: Dice) -> Drill:
    host = Host(other_cpu=dice.number(0.75, 0.65, 0.95), run_cpu=0.35, queue=14)
    devices = gpu_devices(dice.whole(4, 2, 8))
    box = box_with(dice, steps=dice.short, devices=devices, host=lambda step: host)
    box.cards = {1: always(Card(hidden=0.88))}
    return Drill(box)


def _swapping(dice: Dice) -> Drill:
    host = Host(memory_available=0.01, swap_bytes_per_s=60e6)
    box = box_with(dice, steps=dice.short, host=lambda step: host)
    return Drill(box)


def _steady(**changes: object) -> Callable[[Dice], Drill]:
    return lambda dice: Drill(box_with(dice, steps=dice.short, **changes))


def _even(dice: Dice) -> Drill:
    box = box_with(dice, steps=dice.short)
    return Drill(box, even=tuple(range(len(box.devices))) if box.noise <= 0.01 else ())


def _paused(dice: Dice) -> Drill:
    phases, every = ("evaluation", "checkpoint"), dice.whole(50, 30, 90)
    marks = {step: phases[place % 2] for place, step in enumerate(range(every, 400, every))}
    return Drill(box_with(dice, phases=marks))


def _warming(dice: Dice) -> Drill:
    box = box_with(dice)
    box.cards = {2: lambda step: Card(core=0.8, temperature=40) if step <= 40 else HEALTHY}
    return Drill(box)


def _clock_without_pace(dice: Dice) -> Drill:
    """A lower clock that costs nothing, because the model waits for its memory."""
    box = box_with(dice, alpha=0.0)
    box.cards = {1: since(130, Card(core=0.88, throttle=POWER_CAP))}
    return Drill(box)


def _innocent_clock(dice: Dice) -> Drill:
    """Slow throughout for a hidden reason, while a clock changes without any effect."""
    box, percent = box_with(dice, alpha=0.0), dice.number(12, 8, 20)

    def card(step: int) -> Card:
        return Card(core=0.88 if step % 100 >= 50 else 1.0, hidden=1 - percent / 100)

    box.cards = {1: card}
    return Drill(box, slow={1: ""}, percent={1: percent})


def _all_capped_one_slow(dice: Dice) -> Drill:
    """Every card is at its power limit, as busy cards often are: this is not why one is slower."""
    box, percent = box_with(dice, steps=dice.short), dice.number(12, 7, 20)
    capped = Card(core=0.93, throttle=POWER_CAP, temperature=84)
    box.cards = {tower: always(capped) for tower in range(len(box.devices))}
    box.cards[1] = always(replace(capped, hidden=1 - percent / 100))
    return Drill(box, slow={1: ""}, percent={1: percent})


def _one_fast(dice: Dice) -> Drill:
    box = box_with(dice, steps=dice.short, devices=gpu_devices(8))
    box.cards = {3: always(Card(hidden=dice.number(1.08, 1.05, 1.15)))}
    return Drill(box)


def _until(dice: Dice) -> Drill:
    """Another program was there when the run started, and ended."""
    box, last = box_with(dice), dice.whole(130, 150, 250)
    card = Card(busy=dice.number(0.3, 0.15, 0.5), others=1)
    box.cards = {2: since(-100, card, last)}
    return Drill(box, slow={2: "other-process"}, percent={2: percent_of(card, box)})


Make = Callable[[Dice], Drill]

DRILLS: dict[str, Make] = {
    "slow by 5%": _slow_card,
    "core clock low without a reason": _clock_falls,
    "memory clock explains a part": _partly_the_memory_clock,
    "thermal ramp": _ramp,
    "link falls from x16 to x1": _link_falls,
    "one card, two faults": _clock_and_process,
    "input starves": _starved,
    "all become slow": _all_from_onset,
    "variables across the host bridge": _far,
    "GPU lost, worker fails": _lost,
    "GPU lost, no more marks": _without_marks,
    "counters wrap": _wrapping,
    "samples missing at the onset": _gap,
    "clock of the host set back": _clock_set,
    "no samples": _unsampled,
    "busy host hides a slow GPU": _busy_with_a_slow_gpu,
    "host swaps": _swapping,
    "a lower clock that costs nothing": _clock_without_pace,
    "a clock that moves without effect": _innocent_clock,
    "warm-up of one card": _warming,
    "garbage collection": _steady(collected=60),
    "evaluations and checkpoints": _paused,
    "all at their power limit, one slow": _all_capped_one_slow,
    "one fast card": _one_fast,
    "another process leaves": _until,
    "steady": _even,
    "steady, bursts": _steady(noise=0.015, bursts=0.006),
}
