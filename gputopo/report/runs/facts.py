"""The figures of a whole run for users: speed, steps, times, placement, written files."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gputopo.report.layout import ANOMALY_STYLE
from gputopo.report.runs.state import evaluated_words, steps_words
from gputopo.report.units import counted, loss, percent, seconds, size, three_figures
from gputopo.values.grouping import grouped
from gputopo.values.run.batches import as_typed, plain
from gputopo.values.run.events import SAMPLED_FACTS, place_name
from gputopo.values.run.program import OWN_TRAINER
from gputopo.values.run.result import AgainstPrediction, Exchanged, Result

# Every tower applies the same reduced gradients, bit for bit, so the copies of the variables stay equal.
REPLICAS_EQUAL = 0.0
_PARTS = {"compute": "compute", "weights": "weights", "rest": "gradients and update"}


class RunFact(NamedTuple):
    """A row of the report. An empty `name` continues the row before."""

    name: str
    text: str
    style: str = ""


def run_facts(result: Result) -> Iterator[RunFact]:
    """Return all figures in the order of the report."""
    yield from _speed(result)
    yield from _what_ran(result)
    yield from _training(result)
    yield from _times(result)
    yield from _placement(result)
    yield from _files(result)
    yield from _ops(result)
    if result.versions:
        yield RunFact("versions", versions_words(result.versions))


def versions_words(versions: Mapping[str, str]) -> str:
    """Write versions on one line; a commit is shortened."""
    short = {name: text[:10] if name == "commit" else text for name, text in versions.items()}
    return ", ".join(f"{name} {text}" for name, text in short.items())


def _speed(result: Result) -> Iterator[RunFact]:
    speed = result.throughput
    if speed is None:
        yield RunFact("images/sec", "not measured: no step after the warm-up")
    else:
        yield RunFact(
            f"{result.unit}/sec",
            f"{three_figures(speed.mean)} ± {three_figures(speed.margin)} "
            f"(jitter {three_figures(speed.jitter)}), median {three_figures(speed.median)}, "
            f"by wall time {three_figures(speed.total)}",
        )
    if result.prediction is not None:
        yield from _prediction(result.prediction)
    batches = [row.batch_size for row in result.devices]
    if batches and all(batches):
        each = as_typed(plain(batches))
        devices = counted(len(batches), "device")
        where = f"on {devices}, in order" if len(set(batches)) > 1 else f"on each of {devices}"
        yield RunFact("batch", f"{sum(batches)} images: {each} {where}")
    if result.exchange is not None:
        yield from _exchange(result.exchange)
    if result.alone is not None:
        yield RunFact("alone", f"images/sec of each GPU alone: measured in {result.alone}")
    yield from _missing(result)


def _exchange(exchanged: Exchanged) -> Iterator[RunFact]:
    """Yield the share of the gradient exchange between hosts in a step, and each host's times."""
    if exchanged.ms is not None:
        share = f"{three_figures(exchanged.ms)} ms ({percent(exchanged.percent)}%) of a step"
        yield RunFact(
            "exchange", f"{share} after the last device has computed, until all hosts have the sums"
        )
    parts = [
        f"{host.host or f'rank {host.rank}'} {three_figures(host.sends_ms)} / "
        f"{three_figures(host.receives_ms)}"
        for host in exchanged.hosts
        if host.sends_ms is not None or host.receives_ms is not None
    ]
    if parts:
        yield RunFact("", f"ms until gradients are sent / received: {', '.join(parts)}")


def _missing(result: Result) -> Iterator[RunFact]:
    """Yield what is unknown about the GPUs: one row per reason, with its facts and GPUs."""
    reasons = (
        (row, why, dict.fromkeys(SAMPLED_FACTS[field].words for field in fields))
        for row in result.devices
        for why, fields in grouped((why, field) for field, why in row.missing.items()).items()
    )
    gpus = grouped(((why, tuple(names)), row) for row, why, names in reasons)
    for (why, facts), rows in gpus.items():
        if len(rows) == len(result.devices):
            of_gpus = ""
        elif any(row.device.host is not None for row in rows):
            of_gpus = f" of {', '.join(row.device.short_name for row in rows)}"
        else:
            of_gpus = f" of GPU {', '.join(str(row.device.gpu) for row in rows)}"
        yield RunFact("not known", f"{', '.join(facts)}{of_gpus}: {why}")


def _prediction(prediction: AgainstPrediction) -> Iterator[RunFact]:
    speed = three_figures(prediction.images_per_sec)
    low, high = three_figures(prediction.images_per_sec_low), three_figures(prediction.images_per_sec_high)
    style = "yellow" if prediction.verdict in ("slower", "faster") else ""
    yield RunFact("predicted", f"{speed} ({low} to {high}); {prediction.says}", style)
    if prediction.parts:
        parts = (
            f"{_PARTS[name]} {three_figures(part.predicted)} / {three_figures(part.measured)}"
            for name, part in prediction.parts.items()
        )
        yield RunFact("", f"ms of a step, predicted / measured: {', '.join(parts)}")


def _what_ran(result: Result) -> Iterator[RunFact]:
    ran = result.ran
    options = ((name.rstrip("_").replace("_", "-"), _value(value)) for name, value in result.asked.items())
    if asked := ", ".join(f"--{name} {value}".rstrip() for name, value in options):
        yield RunFact("options", asked)
    if not ran:
        return
    words = [str(ran["trainer"])] if ran.get("trainer", OWN_TRAINER) != OWN_TRAINER else []
    if "all_reduce" in ran:
        by = f" ({ran['all_reduce_by']})" if ran.get("all_reduce_by") else ""
        words.append(f"all-reduce {ran['all_reduce']}{by}, by {ran.get('grad_reduce')}")
    elif ran.get("grad_reduce", "mean") != "mean":
        words.append(f"gradients by {ran['grad_reduce']}")
    words += ran.get("exchange", [])
    numbers = [str(ran[name]) for name in ("precision", "data_format", "optimizer") if name in ran]
    if "loss_scale" in ran:
        numbers.append(f"loss scale {_value(ran['loss_scale'])}")
    if ran.get("xla"):
        numbers.append("XLA")
    if words or numbers:
        yield RunFact("ran", ", ".join([*words, *numbers]))
    if "data" in ran:
        yield RunFact("data", str(ran["data"]))


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return ""  # a flag
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _training(result: Result) -> Iterator[RunFact]:
    warmup = counted(result.warmup_steps, "step")
    took = "" if result.warmup_s is None else f" in {seconds(result.warmup_s)}"
    yield RunFact(
        "steps", f"{result.steps} counted, {result.images} images, after a warm-up of {warmup}{took}"
    )
    if result.steady_steps is None:
        yield RunFact("steady", result.steady)
    elif slower_steps := result.steady_steps - result.warmup_steps:
        took = seconds((result.steady_s or 0.0) - (result.warmup_s or 0.0))
        steps = "step was" if slower_steps == 1 else f"{slower_steps} steps were"
        yield RunFact("warm-up", f"the first {steps} slower, for {took}; the speed excludes them")
    if result.parameters:
        yield RunFact("parameters", f"{result.parameters:,}")
    # An evaluation has a loss and an accuracy over all its examples instead.
    if result.steps and result.ran.get("task") != "input" and not result.evaluations:
        yield RunFact("loss", f"{loss(result.first_loss)} → {loss(result.last_loss)}")
    if result.last_top1 is not None and not result.evaluations:
        top5 = "" if result.last_top5 is None else f", top-5 {100 * result.last_top5:.1f}%"
        yield RunFact("accuracy", f"top-1 {100 * result.last_top1:.1f}%{top5} of the last step's examples")
    if result.input_verdict is not None:
        limited = result.input_verdict.verdict == "input"
        yield RunFact("input", result.input_verdict.says, "yellow" if limited else "")
        if result.input_verdict.other is not None:
            yield RunFact("", f"compared with {result.input_verdict.other}")
    for evaluated in result.evaluations:
        yield RunFact("evaluation", evaluated_words(evaluated))


def _times(result: Result) -> Iterator[RunFact]:
    spans = (
        ("import", result.import_s),
        ("build", result.build_s),
        ("first step", result.first_step_s),
        ("whole run", result.wall_s),
    )
    known = [f"{name} {seconds(span)}" for name, span in spans if span is not None]
    if known:
        yield RunFact("time", ", ".join(known))
    if result.memory is not None:
        on_devices = _sizes(result, result.memory.devices)
        host = f"peak {size(result.memory.host_bytes)} on the host"
        yield RunFact("memory", ", ".join(filter(None, (host, on_devices))))


def _placement(result: Result) -> Iterator[RunFact]:
    if result.variables_on:
        yield RunFact("variables", _sizes(result, result.variables_on))
    difference = result.replica_difference
    if difference is None:
        return
    shown = f"they differ by {difference:.3g} at most"
    if result.spec.get("variable_update") == "independent":
        yield RunFact("copies", f"{shown}; each device trains its own copy, so they differ")
    elif difference == REPLICAS_EQUAL:
        yield RunFact("copies", "all equal, as required")
    else:
        yield RunFact("copies", f"{shown}, and must be equal: do not trust this training", ANOMALY_STYLE)


def _ops(result: Result) -> Iterator[RunFact]:
    counts = [f"{count} on {place}" for place, count in _by_place(result, result.ops_on or {})]
    if counts:
        yield RunFact("ops", ", ".join(counts))
    elif result.variables_on:
        yield RunFact("ops", "not checked: this TensorFlow does not report the graphs that it ran")


def _files(result: Result) -> Iterator[RunFact]:
    if result.resumed is not None:
        yield RunFact("resumed", f"after {counted(result.resumed.steps, 'step')}, {result.resumed.path}")
    if result.checkpoints:
        last = result.checkpoints[-1]
        count = counted(len(result.checkpoints), "checkpoint")
        yield RunFact("checkpoints", f"{count}, the last after {counted(last.steps, 'step')}: {last.path}")
    for exported in result.exports:
        yield RunFact("export", f"{exported.path} ({', '.join(exported.formats)})")
    for traced in result.traces:
        took = f"{three_figures(1000 * traced.seconds)} ms"
        took = took if len(traced.steps) == 1 else f"{took} together"
        yield RunFact("trace", f"{steps_words(traced.steps)}, {took}: {traced.path}")


def _sizes(result: Result, bytes_on: dict[str, int]) -> str:
    return ", ".join(f"{size(count)} on {place}" for place, count in _by_place(result, bytes_on))


def _by_place(result: Result, counts: dict[str, int]) -> list[tuple[str, int]]:
    """Return the counts with the names of their devices."""
    places = sorted(counts.items(), key=lambda item: (len(item[0]), item[0]))  # /GPU:2 before /GPU:10
    devices = [row.device for row in result.devices]
    return [(place_name(place, devices), count) for place, count in places]
