"""Logs of tf_cnn_benchmarks (2017 to 2021) and of gputopo: text in, values out.

The lines are printed by tensorflow/benchmarks, scripts/tf_cnn_benchmarks/benchmark_cnn.py (`print_info`,
`get_perf_timing_str`, `benchmark_one_session`), in all its versions. A text may have several runs.
"""

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from gputopo.captures.training_failures import failure_in
from gputopo.values.run.measurement import COMPLETE, FAILED, DeviceFigure, Measurement

TF_CNN = "tf_cnn_benchmarks"
MAX_RUNS = 20_000  # in one text
MAX_DEVICES = 4096  # in one run

# Prefixes of lines: absl, mpirun, a logger.
_PREFIX = re.compile(
    r"^(?:[IWEF]\d{4} [\d:.]{8,20}\s+\d{1,20} [\w.]{1,60}:\d{1,6}\] |\[[\d,]{1,12}\]<std(?:out|err)>:\s?|"
    r"INFO:tensorflow:)"
)
_BEFORE = frozenset("IWEF[")  # first characters of such prefixes
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
_SPEED = "images/sec: "  # in every line with a speed
_TOTAL = re.compile(r"\btotal images/sec: (\d{1,12}(?:\.\d{1,6})?)")
_COMPILED = "Compiled cluster using XLA"  # printed once, at the first cluster, whatever enabled XLA
_SCRIPT = "tf_cnn_benchmarks.py"
_COMMAND = re.compile(r"\btf_cnn_benchmarks\.py\s+(-.{1,4000})$")
_FLAG = re.compile(r"--(no)?(\w{1,40})(?:[= ](?!-)(\S{1,200}))?")
_DEVICE = re.compile(r"(?:-> physical GPU |-> )\(device: (\d{1,3}), name: (.{1,100}?), pci bus id")
_CLOCK_OF_1 = re.compile(r"\bmemoryClockRate ?\(GHz\):? (\d(?:\.\d{1,6})?)")
_CLOCK_OF_2 = re.compile(r"\bcoreClock: (\d(?:\.\d{1,6})?)GHz")
_FOUND = re.compile(r"\bFound device (\d{1,3}) with properties")
_MODES = {"forward": "forward", "evaluation": "eval", "input only": "input"}


def detect(text: str) -> bool:
    """Return whether the text is a log of tf_cnn_benchmarks, complete or only the part with the speeds."""
    return "images/sec: " in text or ("Running warm up" in text and "Variables:" in text)


def parse(text: str, *, origin: str) -> tuple[Measurement, ...]:
    """Return the runs of a log, each complete with its last total, or failed with its reason."""
    return tuple(_run(lines, origin) for lines in _runs(text.splitlines()))


def _runs(lines: Sequence[str]) -> Iterator[list[str]]:
    """Split a text at the headers of its runs; lines before a header belong to its run."""
    bare = [_PREFIX.sub("", line, count=1) if line[:1] in _BEFORE else line for line in lines]
    begins = [number for number, line in enumerate(bare) if line.startswith(_BEGIN)][:MAX_RUNS]
    cuts = [0]
    for begin, last in zip(begins[1:], begins, strict=False):
        ends = [n for n in range(last, begin) if _SPEED in bare[n] and _TOTAL.search(bare[n])]
        # A run without a total ends at the next run's command, if the log shows it.
        commands = [n for n in range(last + 1, begin) if _SCRIPT in bare[n] and _COMMAND.search(bare[n])]
        cuts.append(ends[-1] + 1 if ends else commands[-1] if commands else begin)
    # Several outputs without headers: steps that follow a total belong to another run.
    totals = [number for number, line in enumerate(bare) if _SPEED in line and _TOTAL.search(line)]
    for total, end in zip(totals, [*totals[1:], len(bare)], strict=False):
        after = (line for line in bare[total + 1 : end] if line.startswith(_BEGIN) or _STEP.match(line))
        cuts += [total + 1] if _STEP.match(next(after, "")) else []
    cuts = sorted(set(cuts))
    for start, end in zip(cuts, [*cuts[1:], len(bare)], strict=True):
        yield bare[start:end]


def _run(lines: Sequence[str], origin: str) -> Measurement:
    fields, flags = _header(lines), _flags(lines)
    last, step = None, None
    for line in lines:
        if _SPEED not in line:
            continue
        if (match := _TOTAL.search(line)) is not None:
            last = float(match[1])
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
    """Return the fields of the header; the first one if two have the same name."""
    fields: dict[str, str] = {}
    for line in lines:
        if line[:1] in _NO_FIELD or line[4:5] == "-":  # a rule, a tag, a date
            continue
        if (match := _FIELD.match(line)) is not None:
            fields.setdefault(match[1], match[2])
        elif "Batch size" in fields and (each := _PER_DEVICE.match(line)) is not None:
            fields.setdefault("per device", each[1])
    return fields


def _flags(lines: Sequence[str]) -> dict[str, str]:
    """Return the flags of the command, if the log shows it (`set -x`)."""
    for line in lines:
        if _SCRIPT in line and (match := _COMMAND.search(line)) is not None:
            return {name: value or ("false" if no else "true") for no, name, value in _FLAG.findall(match[1])}
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
    spec = fields.get("AllReduce") or flags.get("all_reduce_spec")
    if _is_true(fields.get("Use NCCL")) or _is_true(flags.get("use_nccl")):
        spec = "nccl"
    batch = fields.get("per device") or flags.get("batch_size", "")
    conditions: dict[str, Any] = {
        "model": fields.get("Model") or flags.get("model") or "unknown",
        "version": ".".join(version.split(".")[:2]) if version else None,
        "dataset": dataset or None,
        "data": ("real" if real else "synthetic") if dataset else None,
        "distortions": _is_true(flags["distortions"]) if real and "distortions" in flags else None,
        "task": task,
        "batch_per_gpu": int(batch) if batch.isdecimal() and len(batch) < 10 else None,
        "data_format": fields.get("Data format") or flags.get("data_format"),
        "variable_update": update,
        "all_reduce": None if update == "parameter_server" or spec in (None, "None", "") else spec,
        "ps_device": flags.get("local_parameter_device") if update == "parameter_server" else None,
        "backend": "cpu" if "/cpu:" in fields.get("Devices", "").lower() else None,
    }
    if half or flags:
        conditions["precision"] = "fp16" if half else "fp32"
    if xla or flags:
        conditions["xla"] = xla
    return conditions


def _gpus(lines: Sequence[str]) -> tuple[dict[int, str], dict[int, float]]:
    """Return the names and boost clocks of the GPUs, by TensorFlow's numbers."""
    names: dict[int, str] = {}
    clocks: dict[int, float] = {}
    device = None
    for line in lines:
        if "evice" not in line and "Clock" not in line:
            continue
        if (match := _FOUND.search(line)) is not None:
            device = int(match[1])
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
    if known := failure_in(lines):
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


def _is_true(text: str | None) -> bool:
    return text is not None and text.strip().lower() in ("true", "1", "t", "yes")
