"""Drills: faults that a run injects into itself to test what is reported about them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from gputopo.values.errors import UsageError
from gputopo.values.option import nearest, shown

Fault = Literal["slow-gpu", "slow-weights", "slow-input", "lost-gpu", "nan", "hang"]
SLOW_GPU, SLOW_WEIGHTS, SLOW_INPUT = "slow-gpu", "slow-weights", "slow-input"
LOST_GPU, NAN, HANG = "lost-gpu", "nan", "hang"
SLOW = (SLOW_GPU, SLOW_WEIGHTS, SLOW_INPUT)  # these continue; the others happen once


class Form(msgspec.Struct, frozen=True):
    """How a fault is written, and what it does in words, with `{device}` and `{percent}`."""

    has_device: bool
    has_factor: bool
    example: str
    does: str


FORMS: Mapping[str, Form] = {
    SLOW_GPU: Form(True, True, "slow-gpu=1:0.85", "{device} computes at {percent}% of its own speed"),
    SLOW_WEIGHTS: Form(
        True, True, "slow-weights=1:0.8", "{device} receives its weights at {percent}% of its own speed"
    ),
    SLOW_INPUT: Form(
        False, True, "slow-input=0.8", "the input delivers {percent}% of what the devices could use"
    ),
    LOST_GPU: Form(True, False, "lost-gpu=1@200", "{device} is lost"),
    NAN: Form(False, False, "nan@50", "the loss and the gradients of the first device become NaN"),
    HANG: Form(False, False, "hang@100", "the worker hangs"),
}


class Drill(msgspec.Struct, frozen=True, kw_only=True):
    """An injected fault."""

    fault: Fault
    device: int | None = None  # number of the GPU, or of the tower on CPU devices, as in outputs
    factor: float | None = None  # factor of the pace, above 0, at most 1
    step: int = 0  # the first counted step with the fault; 0: also during the warm-up

    @property
    def typed(self) -> str:
        """The drill as typed: `slow-gpu=1:0.85@300`."""
        values = [
            *([] if self.device is None else [str(self.device)]),
            *([] if self.factor is None else [f"{self.factor:g}"]),
        ]
        value = f"={':'.join(values)}" if values else ""
        return f"{self.fault}{value}{f'@{self.step}' if self.step else ''}"

    def does(self, noun: str) -> str:
        """Return what it does in words. `noun`: of its device, "GPU" or "device"."""
        percent = "" if self.factor is None else f"{100 * self.factor:g}"
        since = "from" if self.fault in SLOW else "at"
        when = f" {since} step {self.step:,}" if self.step else ""
        return FORMS[self.fault].does.format(device=f"{noun} {self.device}", percent=percent) + when


def read_drills(flag: str, words: Sequence[str]) -> tuple[Drill, ...]:
    """Read `slow-gpu=1:0.85@300` and the like. Raises UsageError for an invalid or repeated drill."""
    drills: dict[object, Drill] = {}
    for word in words:
        drill = _read(flag, word.strip())
        place = drill.fault, drill.device, drill.step
        if place in drills:
            raise UsageError(f"{flag} {drill.typed} is given twice", "give every drill once")
        drills[place] = drill
    return tuple(drills.values())


def drills_of(spec: Mapping[str, Any]) -> tuple[Drill, ...]:
    """Return the drills of a run from the JSON form of its spec; drills of a later version are skipped."""
    try:
        return msgspec.convert(spec.get("drills") or (), tuple[Drill, ...])
    except msgspec.ValidationError:
        return ()


def labels(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the drills of a run as typed, from the JSON form of its spec; () without drills."""
    known = tuple(drill.typed for drill in drills_of(spec))
    return known or (("of an unknown kind",) if spec.get("drills") else ())


def says(drills: Iterable[Drill], noun: str) -> str:
    """Return the line that labels a run with drills."""
    listed = "; ".join(drill.does(noun) for drill in drills)
    return f"DRILL (a fault injected on purpose): {listed}. This run is not used for comparisons."


def _read(flag: str, word: str) -> Drill:
    name = re.split("[=@]", word)[0]
    form = FORMS.get(name)
    if form is None:
        near = nearest(name, FORMS)
        hint = f"did you mean {FORMS[near[0]].example}?" if near else "give one of these: " + ", ".join(FORMS)
        raise UsageError(f"{flag} cannot be {shown(word)}", hint)
    drill = _matched(word, form)
    if drill is None:
        raise UsageError(f"{flag} cannot be {shown(word)}", f"write it as {form.example}")
    if drill.factor is not None and not 0 < drill.factor <= 1:
        raise UsageError(
            f"{flag} {shown(word)} has the factor {drill.factor:g}",
            "give one above 0, 1 at most: 0.85 is 15% slower",
        )
    return drill


def _matched(word: str, form: Form) -> Drill | None:
    value = {
        (True, True): r"=(?P<device>[0-9]{1,4}):(?P<factor>[0-9]+(\.[0-9]+)?)",
        (True, False): r"=(?P<device>[0-9]{1,4})",
        (False, True): r"=(?P<factor>[0-9]+(\.[0-9]+)?)",
        (False, False): "",
    }[form.has_device, form.has_factor]
    match = re.fullmatch(rf"(?P<fault>[a-z-]+){value}(@(?P<step>[1-9][0-9]{{0,8}}))?", word)
    if match is None:
        return None
    parts = match.groupdict()
    # Faults that happen once happen in a counted step.
    step = int(parts["step"] or (0 if form.has_factor else 1))
    return Drill(
        fault=msgspec.convert(parts["fault"], Fault),
        device=int(parts["device"]) if form.has_device else None,
        factor=float(parts["factor"]) if form.has_factor else None,
        step=step,
    )
