"""The report of a run for users: the device table, the figures of the whole run, the verdict."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import starmap

from gputopo.report import units
from gputopo.report.document import Document, Rows, Styled, of_sections
from gputopo.report.layout import ANOMALY_STYLE, Span
from gputopo.report.runs.devices import device_table, is_ahead
from gputopo.report.runs.facts import RunFact, run_facts
from gputopo.report.runs.state import NOT_JUDGED, NOT_RELIABLE, not_reliable, share_cores
from gputopo.report.units import counted, three_figures
from gputopo.values.grouping import grouped
from gputopo.values.run.events import NETWORK, Device, place_name
from gputopo.values.run.program import PROGRAM
from gputopo.values.run.result import Result
from gputopo.values.run.several_runs import Repeats
from gputopo.values.run.verdict import (
    CANNOT_TELL,
    CONFIDENCE,
    EVEN,
    EVEN_PERCENT,
    OUTSIDE,
    SLOW,
    SLOW_PERCENT,
    SOUND,
    Verdict,
)
from gputopo.values.words import at_most, percent, speed

_OTHER_TASKS = {"forward": "forward passes", "eval": "evaluation", "input": "the input alone"}

MINUTES_S = 300.0  # longer times are in minutes
MAX_MORE_S = 86_400.0  # a number of steps that takes longer than a day is not suggested
MAX_NAMES = 8
# Rows that are shown without --verbose; warnings are always shown.
_SHOWN = ("warm-up", "loss", "accuracy", "evaluation", "resumed", "checkpoints", "export", "trace")


def run_document(result: Result, *, verbose: bool = True) -> Document:
    """Return the report of a run, complete or not: speed and what ran, a failure, the verdict, the devices.

    `verbose`: with all figures, else without the details. The report says what was not measured.
    """
    answer = [*_headline(result), *_unstyled(failure_lines(result))]
    facts: list[RunFact] = []
    is_shown = False
    for fact in run_facts(result):
        is_shown = verbose or bool(fact.style) or (fact.name in _SHOWN if fact.name else is_shown)
        facts += [fact] if is_shown else []
    rows = Rows(tuple((fact.name, fact.text) for fact in facts), tuple(fact.style for fact in facts))
    return of_sections(
        [
            ("", answer),
            ("", [*starmap(Styled, _verdict_lines(result, verbose=verbose)), *_unstyled(result.says)]),
            ("", [device_table(result)] if result.devices else []),
            ("", [rows] if facts else []),
            ("", _unstyled(f"Next: {text}" for text in _next_step(result))),
        ]
    )


def _unstyled(lines: Iterable[str]) -> list[Styled]:
    return [Styled(line, "") for line in lines]


def _headline(result: Result) -> list[Styled]:
    """Return the speed and what ran. If the host was busy or the run failed, this comes first."""
    speed = _speed_words(result)
    if speed is None:
        none = "" if result.failure else "No speed, because no step was counted: "
        return [Styled(f"{none}{_title(result)}", "bold")]
    if _busy(result):
        doubt, ran = Styled(f"{speed}.", ANOMALY_STYLE), Styled(_title(result), "bold")
        return [ran, doubt] if result.failure else [doubt, ran]
    return [Styled(f"{speed}: {_title(result)}", "bold")]


def _speed_words(result: Result) -> str | None:
    """Return "38.3 images/sec ± 0.40", or why the speed is not reliable; None if there is no speed."""
    speed = result.throughput
    if speed is None:
        return None
    mean = f"{three_figures(speed.mean)} {result.unit}/sec"
    if busy := _busy(result):
        return f"{mean}, {NOT_RELIABLE}: {busy}"
    return f"{mean} \N{PLUS-MINUS SIGN} {three_figures(speed.margin)}"


def _busy(result: Result) -> str | None:
    """Return what kept the host busy, so that the speed is not reliable; None if nothing did."""
    return None if result.host_load is None else result.host_load.busy


def _title(result: Result, *, ended: bool = True) -> str:
    """Return in one line what ran and on what. `ended`: also how it ended."""
    spec = result.spec
    devices = [row.device for row in result.devices]
    kind = {"cpu": "CPU device", "gpu": "GPU"}.get(result.backend, "device")
    parts = [f"{spec.get('model', 'a model')} on {counted(len(devices), kind)}"]
    if len(hosts := {device.rank for device in devices}) > 1:
        parts[0] += f" of {len(hosts)} hosts"
    if does := _OTHER_TASKS.get(str(spec.get("task"))):
        parts.append(does)
    elif spec.get("strategy"):
        parts.append(f"strategy {spec['strategy']}")
    elif mode := spec.get("variable_update"):
        parts.append(str(mode))
        if place := spec.get("ps_device"):
            # TensorFlow numbers devices differently than users.
            on_host = "the CPU" if place == "/CPU:0" else place_name(str(place), devices)
            names = {device.device: device.short_name for device in devices}
            parts.append(f"variables on {names.get(str(place), on_host)}")
    if result.drills:
        parts.append(f"DRILL {' '.join(result.drills)}")
    if result.rehearsal_of:
        parts.append(f"rehearsal of {result.rehearsal_of}")
    if ended and result.status != "complete":
        parts.append(f"{result.status} after {counted(result.steps, 'step')}")
    return ", ".join(parts)


def _verdict_lines(result: Result, *, verbose: bool = True) -> list[Span]:
    """Return which devices are slow and what they cost, and which bounds hold for the others."""
    lines = [(f"! {says}", ANOMALY_STYLE) for says in _slow_says(result)]
    slow = grouped(
        (row.verdict.says, (row.device, row.verdict.part, row.verdict.cost))
        for row in result.devices
        if row.verdict is not None and row.verdict.cost is not None
    )
    for (device, part, cost), *others in slow.values():
        name = f"host {device.host}" if others or part == NETWORK else device.short_name
        would, did = speed(cost.without), speed(cost.images_per_sec)
        says = f"{name} costs {percent(cost.percent)}% of this run: {would} instead of {did} images/sec."
        lines.append((says, ANOMALY_STYLE))
    lines += _change_lines(result)
    if share_cores([row.device for row in result.devices]):
        lines += [] if result.anomalies else [(f"{NOT_JUDGED}.", "")]
    else:
        lines += _not_slow_lines(result, others=bool(result.anomalies))
    whole = result.run_verdict
    # Without a figure, it was not compared with anything.
    if whole is not None and (verbose or whole.percent_under is not None):
        lines.append(_run_verdict_line(whole))
    if all(row.verdict is None for row in result.devices):
        lines.append((f"Slow devices: the check was {result.anomaly_check}.", "yellow"))
    return lines


def _slow_says(result: Result) -> list[str]:
    """Return the sentences about slow devices; a sentence about a host only once."""
    return list(dict.fromkeys(anomaly.says for anomaly in result.anomalies))


def _change_lines(result: Result) -> list[Span]:
    """Return how the speed changed, unless a verdict reports it or other programs caused it."""
    change = result.speed_change
    if change is None or _busy(result):
        return []
    verdicts = (result.run_verdict, *(row.verdict for row in result.devices))
    if any(verdict and verdict.word == SLOW and verdict.from_step is not None for verdict in verdicts):
        return []
    speeds = f"from {three_figures(change.before)} to {three_figures(change.after)} images/sec"
    verb, how = ("Slowed", "slower") if change.after < change.before else ("Sped up", "faster")
    share = percent(100 * abs(1 - change.after / change.before))
    return [(f"{verb} {speeds} after step {change.after_step:,} ({share}% {how}).", "yellow")]


def _run_verdict_line(verdict: Verdict) -> Span:
    """Return the verdict on all devices together."""
    style = {SLOW: ANOMALY_STYLE, CANNOT_TELL: "yellow"}.get(verdict.word, "")
    return (f"{'! ' if verdict.word == SLOW else ''}{verdict.says}.", style)


def _not_slow_lines(result: Result, *, others: bool) -> list[Span]:
    """Return the bounds for the devices that are not slow, and why some were not compared.

    `others`: there are slow devices.
    """
    known = [(row.device, row.verdict) for row in result.devices if row.verdict is not None]
    compared = [
        (device, verdict)
        for device, verdict in known
        if verdict.word != SLOW and verdict.resolution_percent is not None
    ]
    lines: list[Span] = []
    if compared:
        undecided = any(verdict.word == CANNOT_TELL for _, verdict in compared)
        others = others or len(compared) < len(known)
        lines.append((_excluded(result, compared, others=others), "yellow" if undecided else ""))
    lines += [
        (f"{verdict.says}.", "yellow")
        for _, verdict in compared
        if verdict.word == EVEN and verdict.share_of_steps is not None
    ]
    whys = grouped(
        (verdict.why or "", (device, verdict))
        for device, verdict in known
        if verdict.word == CANNOT_TELL and verdict.resolution_percent is None and len(result.devices) > 1
    )
    for why, of_why in whys.items():
        lines.append((f"{_at_most_slower(of_why, others=len(of_why) < len(known))}: {why}.", "yellow"))
    return lines


def _at_most_slower(judged: Sequence[tuple[Device, Verdict]], *, others: bool) -> str:
    """Return the bound by which these devices can be slower. `others`: there are other devices."""
    highs = [verdict.percent_under_high for _, verdict in judged]
    bounds = [high for high in highs if high is not None]
    is_single = len(judged) == 1
    if not bounds:
        verb = "was" if is_single else "were"
        return f"{_names(judged)} {verb} not compared" if others else "No device was compared"
    bound = f"{at_most(max(*bounds, 0.1))}% slower than its peers ({100 * CONFIDENCE:g}% confidence)"
    if not others:
        return f"No device is more than {bound}"
    return f"{_names(judged)}: {'at most' if is_single else 'each at most'} {bound}"


def _names(judged: Sequence[tuple[Device, Verdict]]) -> str:
    names = [device.short_name for device, _ in judged]
    return ", ".join(names) if len(names) <= MAX_NAMES else f"{len(names)} devices"


def _excluded(result: Result, compared: Sequence[tuple[Device, Verdict]], *, others: bool) -> str:
    """Return by how much these devices can be slower; if that is much, also which run would exclude 5 %."""
    if others and all(is_ahead(verdict) for _, verdict in compared):
        return f"{_names(compared)}: not slower than the others."
    excluded = ""
    for device, verdict in compared:
        if (under := verdict.percent_under or 0.0) > SLOW_PERCENT:
            excluded += f"{device.short_name} was {percent(under)}% slower than its peers in these steps, "
            excluded += "which is not significant. "
    excluded += f"{_at_most_slower(compared, others=others)}."
    verdicts = [verdict for _, verdict in compared]
    if max(verdict.percent_under_high or 0.0 for verdict in verdicts) <= EVEN_PERCENT:
        return excluded
    more = [verdict.more_steps for verdict in verdicts if verdict.more_steps is not None]
    if not more:
        why = next((verdict.why for verdict in verdicts if verdict.why is not None), "")
        return f"{excluded} {why[0].upper()}{why[1:]}." if why else excluded
    steps = result.steps + max(more)
    scale: int = 10 ** max(0, len(str(steps)) - 2)
    steps = -(-steps // scale) * scale  # two figures, because it is an estimate
    seconds = steps * (result.counted_s or 0.0) / max(result.steps, 1)
    if seconds > MAX_MORE_S:
        return excluded
    what = f"{steps:,} steps" if result.spec.get("task") == PROGRAM else f"--num-batches {steps}"
    took = units.seconds(seconds) if seconds < MINUTES_S else f"{seconds / 60:.0f} min"
    return f"{excluded} To detect a slowdown of {EVEN_PERCENT:g}%: {what}, about {took}."


def failure_lines(result: Result) -> list[str]:
    """Return why a run did not complete, what to do, and the worker's last lines; empty if it completed."""
    failure = result.failure
    if failure is None:
        return []
    ended = "Interrupted" if result.status == "interrupted" else "Failed"
    last = [f"  {line.expandtabs()}" for line in failure.last_lines]
    title = ["The last lines of the worker:"] if last else []
    return [f"{ended}: {failure.cause}", f"What to do: {failure.remedy}", *title, *last]


def _next_step(result: Result) -> Iterator[str]:
    """Yield what to do after a completed run, as a sentence; nothing if an earlier line says it."""
    if result.status != "complete" or result.throughput is None:
        return
    if _busy(result):
        yield "repeat the run when the host is idle; top shows what uses it."
    elif result.backend == "cpu":
        other = f"gputopo plan --from 7gforce --model {result.spec.get('model')}"
        yield f"gputopo report compares your runs; {other} plans for a machine with GPUs."
    elif result.anomalies and not result.drills:
        yield "gputopo screen trains on each GPU alone and shows whether one is slow on its own."


def repeats_document(repeats: Repeats) -> Document:
    """Return the report of repeated runs: what ran, how each repeat ended, mean and spread."""
    busy = [why for run in repeats.runs if (why := _busy(run))]
    doubts = [Styled(not_reliable(busy, len(repeats.runs), "repeat"), ANOMALY_STYLE)] if busy else []
    what_ran = [
        line
        for run in repeats.runs[:1]
        for line in (Styled(_title(run, ended=False), "bold"), *_unstyled(run.says))
    ]
    return of_sections(
        [
            ("", doubts),
            ("", what_ran),
            ("", [_repeat(number, run) for number, run in enumerate(repeats.runs, 1)]),
            ("", [Styled(_together(repeats), "bold")]),
        ]
    )


def _repeat(number: int, run: Result) -> Styled:
    if run.status != "complete":
        why = "" if run.failure is None else f": {run.failure.cause}"
        return Styled(f"repeat {number}  {run.status}{why}", ANOMALY_STYLE)
    speed = run.throughput
    if speed is None:
        return Styled(f"repeat {number}  not measured: no step after the warm-up", "")
    text = f"repeat {number}  {_speed_words(run)}, median {three_figures(speed.median)}"
    marked = f"  ! {'; '.join(_slow_says(run))}" if run.anomalies else ""
    return Styled(text + marked, ANOMALY_STYLE if marked else "")


def _together(repeats: Repeats) -> str:
    speed = repeats.images_per_sec
    if speed is None:
        return f"None of {repeats.asked} repeats gave a speed."
    spread = "" if speed.deviation is None else f" ± {three_figures(speed.deviation)}"
    return (
        f"{three_figures(speed.mean)} images/sec{spread} over {speed.of} of {repeats.asked} repeats, "
        f"from {three_figures(speed.lowest)} to {three_figures(speed.highest)}"
    )


def program_lines(result: Result) -> Iterator[str]:
    """Yield the speed of the program's reported steps, if any, what is slow, and what the samples show.

    Trivial results are skipped: a program that runs for a few seconds has no verdict.
    """
    speed = result.throughput
    if speed is not None:
        first = counted(result.warmup_steps, "step")
        middle, steps = three_figures(speed.median), counted(result.steps, "step")
        yield f"{_speed_words(result)}, median {middle}, over {steps} after {first} of warm-up"
    if any(row.images_per_sec is not None for row in result.devices):
        yield from (text for text, _ in _verdict_lines(result))
    elif result.run_verdict is not None:
        yield _run_verdict_line(result.run_verdict)[0]
    if result.placed is not None and result.placed.word == OUTSIDE:
        yield f"! {result.placed.says}"
    hardware = result.hardware
    if hardware is None:
        return
    for fault in hardware.faults:
        yield fault.says if fault.severity == "info" else f"! {fault.says}"
    if hardware.word == SOUND:
        # With one GPU there are no peers to compare.
        whys = "; ".join(f"{name} ({why})" for name, why in hardware.not_checked.items())
        yield f"hardware: {hardware.says}{f'; not checked: {whys}' if whys else ''}"
