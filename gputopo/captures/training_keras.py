"""Output of Keras `fit` (2 and 3) and of Horovod's synthetic benchmarks: text in, values out.

Keras: the progress lines of keras/utils/generic_utils.py (2) and keras/src/utils/progbar.py (3), and
"Samples/sec" of rossumai/keras-multi-gpu. The result is the median of the epochs without the first. Step
times have few digits, and Keras does not print the batch or the devices: a log without a batch has steps but
no images/sec.

Horovod: examples/*/*_synthetic_benchmark.py, whose "+-" is 1.96 standard deviations of its iterations.
"""

import math
import re
from collections.abc import Iterator, Sequence
from statistics import median, stdev
from typing import NamedTuple

from gputopo.captures.training_failures import failure_in
from gputopo.captures.training_tensorpack import VERSION
from gputopo.values.run.measurement import COMPLETE, FAILED, Measurement

_CONTROL = re.compile(r"\x1b\[[\d;]{0,8}m")  # colors of Keras 3
_LINE_ENDS = re.compile(r"[\r\n\b]+")  # a progress bar goes back with \b or \r
_EPOCH = re.compile(r"^Epoch (\d{1,9})/(\d{1,9})\s*$")
# The start of a progress line, and a whole progress line with its seconds.
_BAR = re.compile(r"^\s*\d{1,12}/\d{1,12} (?:\[[=>.]{8}|━|- \d{1,9}s )")
_WHOLE = re.compile(r"^\s*(\d{1,12})/\1\b[^\d]{0,80}(\d{1,9})s\b")
_UNIT = re.compile(r"\b(\d{1,9})(us|ms|s)/(?:step|sample)\b")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_SAMPLES = re.compile(r"^Train on (\d{1,12}) samples")
_BATCH = re.compile(r"\bbatch[ _-]?size\W{1,3}(\d{1,7})\b", re.IGNORECASE)
_DEVICES = re.compile(r"\bNumber of (?:devices|replicas): (\d{1,4})\b")
_MODEL = re.compile(r'^Model: "([\w.-]{1,60})"')
_TRACKED = re.compile(r"^Samples/sec: (\d{1,9}\.\d\d)$")

_TOTAL = re.compile(r"Total img/sec on (\d{1,4}) ([CG]PU)\(s\): (\d{1,9}\.\d) \+-(\d{1,9}\.\d)")
_COUNT = re.compile(r"Number of ([CG]PU)s?: (\d{1,4})")
_OF_HOROVOD = re.compile(r"^.{0,80}?\b(Model|Batch size): ([\w.-]{1,60})\s*$")
_ITERATION = " img/sec per "


class _Epoch(NamedTuple):
    """The last line of an epoch. `digits`: half a unit of the last digit, as a share of the value."""

    steps: int
    seconds_per_step: float
    digits: float


def is_keras(text: str) -> bool:
    """Return whether the text is the output of `fit`."""
    lines = _lines(text)
    return any(map(_EPOCH.match, lines)) and any(_BAR.match(line) or _TRACKED.match(line) for line in lines)


def parse_keras(text: str, *, origin: str) -> Measurement:
    """Return the run of a log; without images/sec, and with the reason, if the log does not state enough."""
    lines = _lines(text)
    epochs = list(_epochs(lines))
    counted = epochs[1:] or epochs
    batch, devices = (
        int(found[1]) if (found := pattern.search(text)) else None for pattern in (_BATCH, _DEVICES)
    )
    samples = _first(_SAMPLES, lines)
    is_of_samples = "/sample" in text or (
        samples is not None and counted and int(samples) == counted[0].steps
    )
    images = 1 if is_of_samples else batch
    tracked = [float(found[1]) for line in lines if (found := _TRACKED.match(line))]
    speeds = [images / one.seconds_per_step for one in counted if images]
    speed = tracked[-1] if tracked else median(speeds) if speeds else None
    error = None
    if speed and not tracked:
        spread = stdev(speeds) / len(speeds) ** 0.5 if len(speeds) > 1 else 0.0
        # A rounded value is anywhere within half a unit: its standard deviation is half a unit over the root
        # of 3.
        error = math.hypot(spread, speed * median(one.digits for one in counted) / math.sqrt(3))
    reason = "the log ends before the first epoch does"
    if counted:
        step_ms = 1000 * median(epoch.seconds_per_step for epoch in counted)
        reason = f"{step_ms:.3g} ms a step, but the log has no batch size"
    return Measurement(
        source=origin,
        status=COMPLETE if speed else FAILED,
        reason=None if speed else failure_in(lines) or reason,
        images_per_sec=speed,
        median=speed,
        uncertainty=error,
        steps=None if is_of_samples else sum(one.steps for one in counted) or None,
        n_gpus=devices or 1,
        batch_per_gpu=batch // (devices or 1) if batch else None,
        model=_first(_MODEL, lines) or "unknown",
        framework="keras",
        version=found[1] if (found := VERSION.search(text)) else None,
    )


def _lines(text: str) -> list[str]:
    return _LINE_ENDS.split(_CONTROL.sub("", text))


def _first(pattern: re.Pattern[str], lines: Sequence[str]) -> str | None:
    return next((found[1] for line in lines if (found := pattern.match(line))), None)


def _epochs(lines: Sequence[str]) -> Iterator[_Epoch]:
    """Iterate over the first whole line after the head of each epoch: later lines are from `evaluate`."""
    is_open = False
    for line in lines:
        if _EPOCH.match(line):
            is_open = True
        elif is_open and (whole := _WHOLE.match(line)):
            steps, seconds, unit = int(whole[1]), int(whole[2]), _UNIT.search(line)
            value = int(unit[1]) if unit else 0
            if unit and value > seconds:
                yield _Epoch(steps, value * _SECONDS[unit[2]], 0.5 / value)
            elif seconds and steps:
                yield _Epoch(steps, seconds / steps, 0.5 / seconds)
            is_open = False


def is_horovod(text: str) -> bool:
    """Return whether the text is the output of one of Horovod's synthetic benchmarks."""
    return _ITERATION in text and _COUNT.search(text) is not None


def parse_horovod(text: str, *, origin: str) -> Measurement:
    """Return the run of a log; it failed, with the reason, if the log has no total."""
    lines = text.splitlines()
    stated = {found[1]: found[2] for line in lines if (found := _OF_HOROVOD.match(line))}
    total, count = _TOTAL.search(text), _COUNT.search(text)
    speed = float(total[3]) if total else 0.0
    deviation = float(total[4]) / 1.96 if total else 0.0
    iterations = sum("Iter #" in one for one in lines)
    batch = stated.get("Batch size", "")
    return Measurement(
        source=origin,
        status=COMPLETE if speed else FAILED,
        reason=None if speed else failure_in(lines) or "the log ends before its total",
        images_per_sec=speed or None,
        uncertainty=deviation / math.sqrt(iterations) if speed and iterations else None,
        n_gpus=max(1, int(total[1] if total else count[2] if count else 1)),
        backend=count[1].lower() if count else None,
        model=stated.get("Model", "unknown").lower(),
        data="synthetic",
        batch_per_gpu=int(batch) if batch.isdecimal() else None,
        framework="horovod",
    )
