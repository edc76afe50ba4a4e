"""Logs of tf_cnn_benchmarks (2017 to 2021, and of gputopo) and of tensorpack: text in, values out.

The lines of tf_cnn_benchmarks are those of tensorflow/benchmarks, scripts/tf_cnn_benchmarks/benchmark_cnn.py
(`print_info`, `get_perf_timing_str`, `benchmark_one_session`) over its years. A text may hold several runs.
Of tensorpack (command, GPUs, the time of each epoch, samples/sec of its ThroughputTracker) the throughput is
the median of the epochs without the first, which has compiling and filling of caches in it. A run that failed
has its reason: the first cause in its log that is known.
"""

import math
import re
from collections.abc import Iterator, Sequence
from statistics import median, stdev
from typing import Any

from gputopo.values.fields import rows_of
from gputopo.values.run.measurement import COMPLETE, FAILED, DeviceFigure, Measurement

_MAX_LINES = 4000  # from the end that are looked at
_MAX_WORDS = 160  # of the reason

# In order: a program that runs out of memory also raises an error, and a killed one may have a traceback.
_CAUSES = [(re.compile(row["pattern"]), row["cause"]) for row in rows_of(__file__, "training_causes.csv")]
_ERROR = re.compile(r"^((?:\w+\.)*\w*(?:Error|Exception|Interrupt|Timeout)(?:: .*)?)$")


def failure_in(lines: Sequence[str]) -> str | None:
    """Return the reason in words, with the words of the log; None where no cause is recognised."""
    end = lines[-_MAX_LINES:]
    for pattern, words in _CAUSES:
        for line in end:
            if (found := pattern.search(line)) is not None:
                text = found[0].strip()
                return _short(words if text.lower() == words else f"{words}: {text}")
    errors = [found[1] for line in end if (found := _ERROR.match(line.strip()))]
    return _short(errors[-1]) if errors else None


def _short(text: str) -> str:
    return text if len(text) <= _MAX_WORDS else text[: _MAX_WORDS - 1] + "…"


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
VERSION = re.compile(r"\bTensorFlow\s+(?:version:? )?v?(\d+\.\d+)")


def is_tensorpack(text: str) -> bool:
    """Return whether the text is a log of tensorpack."""
    return bool(_LINE.search(text[:4000])) or (
        "tensorpack" in text[:8000] and _EPOCH.search(text) is not None
    )


def parse_tensorpack(text: str, *, origin: str) -> tuple[Measurement, ...]:
    """Return the run of a log, one; failed with its reason where no epoch's throughput is known."""
    lines = text.splitlines()
    flags = _tensorpack_flags(lines)
    listed = sum(one.strip().isdecimal() for one in flags.get("gpu", "").split(","))
    count = _towers(lines) or listed or 1
    batch = _whole(flags.get("batch") or flags.get("batch-size") or flags.get("batch_size"))
    speeds = _speeds(lines, None if batch is None else batch * count)
    counted = speeds[1:] or speeds
    speed = median(counted) if counted else None
    complete = speed is not None and speed > 0
    spread = stdev(counted) / len(counted) ** 0.5 if len(counted) > 1 else None
    found = VERSION.search(text)
    return (
        Measurement(
            source=origin,
            status=COMPLETE if complete else FAILED,
            reason=None if complete else _tensorpack_reason(lines, batch),
            images_per_sec=speed if complete else None,
            median=speed if complete else None,
            uncertainty=spread if complete else None,
            n_gpus=count,
            batch_per_gpu=batch,
            framework=TENSORPACK,
            version=found[1] if found else None,
            **_tensorpack_conditions(flags),
        ),
    )


def _tensorpack_flags(lines: Sequence[str]) -> dict[str, str]:
    for line in lines:
        if (found := _ARGV.search(line)) is not None:
            return {
                "script": found[1].split()[0],
                **{n: v or "true" for n, v in _TENSORPACK_FLAG.findall(found[1])},
            }
    return {}


def _towers(lines: Sequence[str]) -> int | None:
    count = None
    for line in lines:
        if (found := _TOWERS.search(line)) is not None:
            number = int(found[1]) if found[1] else int(found[2]) + 1
            count = max(count or 1, number)
    return count


def _speeds(lines: Sequence[str], joint_batch: int | None) -> list[float]:
    """Return images/sec of the epochs: as tracked, else from the steps and seconds of each epoch."""
    tracked, by_time = [], []
    last = 0
    for line in lines:
        if (found := _THROUGHPUT.search(line)) is not None:
            factor = 1 if found[1] == "samples" else joint_batch
            tracked += [float(found[2]) * factor] if factor else []
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


def _tensorpack_reason(lines: Sequence[str], batch: int | None) -> str:
    known = failure_in(lines)
    if known is not None:
        return known
    if any(_EPOCH.search(line) for line in lines) and batch is None:
        return "it has epochs, but neither throughput nor batch: its log lacks the command"
    return "the log ends before the first epoch does"


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and len(text) < 10 else None


TF_CNN = "tf_cnn_benchmarks"
MAX_RUNS = 20_000  # of one text
MAX_DEVICES = 4096  # of one run

# Before a line: absl's prefix, mpirun's tag, a logger.
_PREFIX = re.compile(
    r"^(?:[IWEF]\d{4} [\d:.]{8,20}\s+\d{1,20} [\w.]{1,60}:\d{1,6}\] |\[[\d,]{1,12}\]<std(?:out|err)>:\s?|"
    r"INFO:tensorflow:)"
)
_BEFORE = frozenset("IWEF[")  # what such a prefix begins with
_BEGIN = "TensorFlow:"
_FIELD = re.compile(
    r"^(TensorFlow|Model|Dataset|Mode|Batch size|Devices|Data format|Variables|AllReduce|Use NCCL|"
    r"Staged vars|Precision|Num batches|Trainer):\s+(.{1,4000}?)\s*$"
)
_NO_FIELD = frozenset("-=[")
_PER_DEVICE = re.compile(r"^\s*(\d{1,9})(?:\.\d{1,6})? per device\b")
_STEP = re.compile(
    r"^(\d{1,12})\s+images/sec: (\d{1,12}(?:\.\d{1,6})?|nan|inf) \+/- (\S{1,16}) \(jitter = (\S{1,16})\)"
)
_SPEED = "images/sec: "  # in every line that has one
_TOTAL = re.compile(r"\btotal images/sec: (\d{1,12}(?:\.\d{1,6})?)")
_COMPILED = "Compiled cluster using XLA"  # once, at the first cluster, whatever asked for it
_SCRIPT = "tf_cnn_benchmarks.py"
_COMMAND = re.compile(r"\btf_cnn_benchmarks\.py\s+(-.{1,4000})$")
_FLAG = re.compile(r"--(no)?(\w{1,40})(?:[= ](?!-)(\S{1,200}))?")
_DEVICE = re.compile(r"(?:-> physical GPU |-> )\(device: (\d{1,3}), name: (.{1,100}?), pci bus id")
_CLOCK_OF_1 = re.compile(r"\bmemoryClockRate ?\(GHz\):? (\d(?:\.\d{1,6})?)")
_CLOCK_OF_2 = re.compile(r"\bcoreClock: (\d(?:\.\d{1,6})?)GHz")
_FOUND = re.compile(r"\bFound device (\d{1,3}) with properties")
_MODES = {"forward": "forward", "evaluation": "eval", "input only": "input"}


def is_tf_cnn(text: str) -> bool:
    """Return whether the text is a log of tf_cnn_benchmarks, whole or the part with the figures."""
    return "images/sec: " in text or ("Running warm up" in text and "Variables:" in text)


def parse_tf_cnn(text: str, *, origin: str) -> tuple[Measurement, ...]:
    """Return the runs of a log, each complete with its last total, or failed with its reason."""
    return tuple(_run(lines, origin) for lines in _runs(text.splitlines()))


def _runs(lines: Sequence[str]) -> Iterator[list[str]]:
    """Split a text at the headers of its runs; what stands before a header belongs to its run."""
    bare = [_PREFIX.sub("", line, count=1) if line[:1] in _BEFORE else line for line in lines]
    begins = [number for number, line in enumerate(bare) if line.startswith(_BEGIN)][:MAX_RUNS]
    cuts = [0]
    for begin, last in zip(begins[1:], begins, strict=False):
        ends = [n for n in range(last, begin) if _SPEED in bare[n] and _TOTAL.search(bare[n])]
        cuts.append(ends[-1] + 1 if ends else _after_failure(bare, last, begin))
    # Outputs without headers one after the other: steps that follow a total are of another run.
    totals = [number for number, line in enumerate(bare) if _SPEED in line and _TOTAL.search(line)]
    for total, end in zip(totals, [*totals[1:], len(bare)], strict=False):
        after = (line for line in bare[total + 1 : end] if line.startswith(_BEGIN) or _STEP.match(line))
        cuts += [total + 1] if _STEP.match(next(after, "")) else []
    cuts = sorted(set(cuts))
    for start, end in zip(cuts, [*cuts[1:], len(bare)], strict=True):
        yield bare[start:end]


def _after_failure(lines: Sequence[str], start: int, end: int) -> int:
    """Return where the next run begins after one without a total: at its command, if that is shown."""
    commands = [n for n in range(start + 1, end) if _SCRIPT in lines[n] and _COMMAND.search(lines[n])]
    return commands[-1] if commands else end


def _run(lines: Sequence[str], origin: str) -> Measurement:
    fields, flags = _header(lines), _flags(lines)
    last, step = None, None
    for line in lines:
        if _SPEED not in line:
            continue
        if (found := _TOTAL.search(line)) is not None:
            last = float(found[1])
        elif (match := _STEP.match(line)) is not None:
            step = match
    complete = last is not None and last > 0
    names, clocks = _gpus(lines)
    count = _device_count(fields, flags)
    conditions = _conditions(fields, flags)
    if any(_COMPILED in line for line in lines):
        conditions["xla"] = True
    used = [names[n] for n in sorted(names)[:count]]
    uncertainty, jitter = (_number(step[3]), _number(step[4])) if step else (None, None)
    return Measurement(
        source=origin,
        status=COMPLETE if complete else FAILED,
        reason=None if complete else _reason(lines, last, step),
        gpu=" + ".join(dict.fromkeys(used)) or None,
        n_gpus=count,
        images_per_sec=last if complete else None,
        uncertainty=uncertainty if complete else None,
        jitter=jitter if complete else None,
        steps=int(step[1]) if step else None,
        devices=tuple(
            DeviceFigure(number=n, name=names[n], graphics_mhz=clocks.get(n)) for n in sorted(names)[:count]
        ),
        framework=TF_CNN,
        **conditions,
    )


def _header(lines: Sequence[str]) -> dict[str, str]:
    """Return the fields of the header; of two with the same name the first."""
    fields: dict[str, str] = {}
    for line in lines:
        if line[:1] in _NO_FIELD or line[4:5] == "-":  # a rule, a tag, a date
            continue
        if (found := _FIELD.match(line)) is not None:
            fields.setdefault(found[1], found[2])
        elif "Batch size" in fields and (each := _PER_DEVICE.match(line)) is not None:
            fields.setdefault("per device", each[1])
    return fields


def _flags(lines: Sequence[str]) -> dict[str, str]:
    """Return the flags of the command, where the log shows it (`set -x`)."""
    for line in lines:
        if _SCRIPT in line and (found := _COMMAND.search(line)) is not None:
            return {name: value or ("false" if no else "true") for no, name, value in _FLAG.findall(found[1])}
    return {}


def _device_count(fields: dict[str, str], flags: dict[str, str]) -> int:
    listed = fields.get("Devices", "").count("'") // 2
    if listed:
        return min(listed, MAX_DEVICES)
    joint = re.match(r"(\d{1,9})(?:\.\d+)? global", fields.get("Batch size", ""))
    each = int(fields.get("per device", 0))
    if joint and each:
        return max(1, min(int(joint[1]) // each, MAX_DEVICES))
    number = flags.get("num_gpus", "")
    return max(1, min(int(number), MAX_DEVICES)) if number.isdecimal() and len(number) < 6 else 1


def _conditions(fields: dict[str, str], flags: dict[str, str]) -> dict[str, Any]:
    dataset, _, synthetic = fields.get("Dataset", "").partition(" (")
    real = bool(dataset) and not synthetic
    update = fields.get("Variables") or flags.get("variable_update")
    precision = fields.get("Precision", "")
    half = _is_true(flags.get("use_fp16")) or "fp16" in precision
    xla = "XLA" in precision or _is_true(flags.get("xla")) or _is_true(flags.get("xla_compile"))
    version = fields.get("TensorFlow")
    task = next((known for word, known in _MODES.items() if word in fields.get("Mode", "")), "train")
    found: dict[str, Any] = {
        "model": fields.get("Model") or flags.get("model") or "unknown",
        "version": ".".join(version.split(".")[:2]) if version else None,
        "dataset": dataset or None,
        "data": ("real" if real else "synthetic") if dataset else None,
        "distortions": _is_true(flags["distortions"]) if real and "distortions" in flags else None,
        "task": task,
        "batch_per_gpu": int(fields["per device"]) if "per device" in fields else _int(flags, "batch_size"),
        "data_format": fields.get("Data format") or flags.get("data_format"),
        "variable_update": update,
        "all_reduce": _all_reduce(update, fields, flags),
        "ps_device": flags.get("local_parameter_device") if update == "parameter_server" else None,
        "backend": "cpu" if "/cpu:" in fields.get("Devices", "").lower() else None,
    }
    if half or flags:
        found["precision"] = "fp16" if half else "fp32"
    if xla or flags:
        found["xla"] = xla
    return found


def _all_reduce(update: str | None, fields: dict[str, str], flags: dict[str, str]) -> str | None:
    if update == "parameter_server":
        return None
    if _is_true(fields.get("Use NCCL")) or _is_true(flags.get("use_nccl")):
        return "nccl"
    spec = fields.get("AllReduce") or flags.get("all_reduce_spec")
    return None if spec in (None, "None", "") else spec


def _gpus(lines: Sequence[str]) -> tuple[dict[int, str], dict[int, float]]:
    """Return names and boost clocks of the GPUs, by TensorFlow's numbers."""
    names: dict[int, str] = {}
    clocks: dict[int, float] = {}
    device = None
    for line in lines:
        if "evice" not in line and "Clock" not in line:
            continue
        if (found := _FOUND.search(line)) is not None:
            device = int(found[1])
        elif (
            clock := _CLOCK_OF_2.search(line) or _CLOCK_OF_1.search(line)
        ) is not None and device is not None:
            clocks[device] = round(1000 * float(clock[1]), 3)
        elif (created := _DEVICE.search(line)) is not None:
            names[int(created[1])] = created[2].removeprefix("NVIDIA ").strip()
    return names, clocks


def _reason(lines: Sequence[str], total: float | None, step: re.Match[str] | None) -> str:
    if total is not None:
        return "its total is 0 images/sec"
    known = failure_in(lines)
    if known is not None:
        return known
    if step is not None:
        return f"the log ends after step {step[1]}, without a total"
    started = any("Running warm up" in line for line in lines)
    return "the log ends in the warm-up" if started else "the log ends before the first step"


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _int(flags: dict[str, str], name: str) -> int | None:
    text = flags.get(name, "")
    return int(text) if text.isdecimal() and 0 < len(text) < 10 else None


def _is_true(text: str | None) -> bool:
    return text is not None and text.strip().lower() in ("true", "1", "t", "yes")
