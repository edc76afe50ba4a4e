"""Logs of tensorpack (command, GPUs, the time of each epoch, samples/sec): text in, values out.

The throughput is the median of the epochs without the first, which includes compilation and filling caches.
"""

import re
from collections.abc import Sequence
from statistics import median, stdev
from typing import Any

from gputopo.captures.training_failures import failure_in
from gputopo.values.run.measurement import COMPLETE, FAILED, Measurement

TENSORPACK = "tensorpack"
_LINE = re.compile(r"^\S{0,12}\[\d{4} \d\d:\d\d:\d\d @[\w.]{1,60}:\d{1,6}\]")
_ARGV = re.compile(r"\bArgv: (.{1,4000})$")
_TENSORPACK_FLAG = re.compile(r"--([\w-]{1,40})(?:[= ](?!-)(\S{1,200}))?")
_EPOCH = re.compile(r"Epoch (\d{1,9}) \(global_step (\d{1,12})\) finished, time:\s?(\d.{0,60})")
# A duration as tensorpack writes it: "30.1 seconds", "5 minutes 53 seconds", "8.21sec".
_PART = re.compile(r"(\d{1,9}(?:\.\d{1,6})?) ?(sec|minute|hour|day)")
_SECONDS = {"sec": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0}
_THROUGHPUT = re.compile(
    r"Throughput \((samples|steps)/sec\)(?:'|\")?: (\d{1,12}(?:\.\d{1,9})?(?:e[+-]?\d{1,3})?)"
)
_TOWERS = re.compile(r"Training a model of (\d{1,4}) towers?|Building graph for training tower (\d{1,4}) on")
VERSION = re.compile(r"\bTensorFlow\s+(?:version:? )?v?(\d+\.\d+)")  # TensorFlow's version


def detect(text: str) -> bool:
    """Return whether the text is a log of tensorpack."""
    return bool(_LINE.search(text[:4000])) or (
        "tensorpack" in text[:8000] and _EPOCH.search(text) is not None
    )


def parse(text: str, *, origin: str) -> Measurement:
    """Return the run of a log; it failed, with the reason, if no epoch has a throughput."""
    lines = text.splitlines()
    flags = _tensorpack_flags(lines)
    listed = sum(number.strip().isdecimal() for number in flags.get("gpu", "").split(","))
    towers = [match for line in lines if (match := _TOWERS.search(line))]
    counts = [int(tower[1]) if tower[1] else int(tower[2]) + 1 for tower in towers]
    count = max(counts, default=listed) or 1
    words = flags.get("batch") or flags.get("batch-size") or flags.get("batch_size") or ""
    batch = int(words) if words.isdecimal() and len(words) < 10 else None
    speeds = _speeds(lines, None if batch is None else batch * count)
    counted = speeds[1:] or speeds
    speed = median(counted) if counted else None
    complete = speed is not None and speed > 0
    spread = stdev(counted) / len(counted) ** 0.5 if len(counted) > 1 else None
    match = VERSION.search(text)
    reason = "the log ends before the first epoch does"
    if batch is None and any(map(_EPOCH.search, lines)):
        reason = "it has epochs, but neither throughput nor batch: its log does not show the command"
    return Measurement(
        source=origin,
        status=COMPLETE if complete else FAILED,
        reason=None if complete else failure_in(lines) or reason,
        images_per_sec=speed if complete else None,
        median=speed if complete else None,
        uncertainty=spread if complete else None,
        n_gpus=count,
        batch_per_gpu=batch,
        framework=TENSORPACK,
        version=match[1] if match else None,
        **_tensorpack_conditions(flags),
    )


def _tensorpack_flags(lines: Sequence[str]) -> dict[str, str]:
    for line in lines:
        if (match := _ARGV.search(line)) is not None:
            return {
                "script": match[1].split()[0],
                **{n: v or "true" for n, v in _TENSORPACK_FLAG.findall(match[1])},
            }
    return {}


def _speeds(lines: Sequence[str], joint_batch: int | None) -> list[float]:
    """Return images/sec of the epochs, as printed, else computed from the steps and seconds of each epoch."""
    tracked, by_time = [], []
    last = 0
    for line in lines:
        if (match := _THROUGHPUT.search(line)) is not None:
            factor = 1 if match[1] == "samples" else joint_batch
            tracked += [float(match[2]) * factor] if factor else []
        elif (epoch := _EPOCH.search(line)) is not None:
            steps = int(epoch[2]) - last
            seconds = sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(epoch[3]))
            last = int(epoch[2])
            if joint_batch is not None and seconds > 0 and steps > 0:
                by_time.append(steps * joint_batch / seconds)
    return tracked or by_time


def _tensorpack_conditions(flags: dict[str, str]) -> dict[str, Any]:
    location = flags.get("fake-location", "")
    data = {"gpu": "synthetic", "cpu": "synthetic-cpu"}.get(location)
    if data is None and location:
        data = "synthetic-python" if location.startswith("python") else f"synthetic-{location}"
    if data is None and flags.get("data"):
        data = "real"
    update = flags.get("variable-update") or flags.get("variable_update")
    script = flags.get("script", "")
    known = re.search(r"resnet|vgg16|alexnet|inception", script)
    model = flags.get("model", "")
    depth = flags.get("depth") or flags.get("d") or ("50" if "multigpu" in script else "")
    named = known[0] if known else None
    if named == "resnet":
        named = f"resnet{depth}"
    return {
        "model": named or (model if model not in ("", "tfbench", "tensorpack") else "unknown"),
        "data": data,
        "variable_update": update,
        "ps_device": flags.get("ps-device") if update == "parameter_server" else None,
        "precision": "fp16" if "use-fp16" in flags else "fp32" if flags else None,
        "xla": "use-xla-compile" in flags if flags else None,
        "data_format": flags.get("data_format"),
    }
