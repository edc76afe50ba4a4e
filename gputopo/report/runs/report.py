"""The report of a run for users: the device table, the figures of the whole run, the verdict."""

from collections.abc import Iterator, Sequence

from gputopo.report import units
from gputopo.report.document import Document, Rows, Styled, of_sections
from gputopo.report.layout import ANOMALY_STYLE, Span
from gputopo.report.runs.devices import device_table, is_ahead
from gputopo.report.runs.facts import RunFact, run_facts
from gputopo.report.runs.state import NOT_JUDGED, NOT_RELIABLE, not_reliable, share_cores
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
    Hardware,
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
    failure = [Styled(text, "") for text in failure_lines(result)]
    says = [Styled(*one) for one in verdict_lines(result, verbose=verbose)]
    found: list[RunFact] = []
    shown = False
    for one in run_facts(result):
        shown = verbose or bool(one.style) or (one.name in _SHOWN if one.name else shown)
        found += [one] if shown else []
    facts = Rows(tuple((one.name, one.text) for one in found), tuple(one.style for one in found))
    return of_sections(
        [
            ("", [*_headline(result), *failure]),
            ("", [*says, *(Styled(text, "") for text in result.says)]),
            ("", [device_table(result)] if result.devices else []),
            ("", [facts] if found else []),
            ("", [Styled(f"Next: {text}", "") for text in _next_step(result)]),
        ]
    )


def _headline(result: Result) -> list[Styled]:
    """Return the speed and what ran. If the host was busy or the run failed, this comes first."""
    speed = speed_words(result)
    if speed is None:
        none = "" if result.failure else "No speed, because no step was counted: "
        return [Styled(f"{none}{title(result)}", "bold")]
    if _busy(result):
        doubt, ran = Styled(f"{speed}.", ANOMALY_STYLE), Styled(title(result), "bold")
        return [ran, doubt] if result.failure else [doubt, ran]
    return [Styled(f"{speed}: {title(result)}", "bold")]


def speed_words(result: Result) -> str | None:
    """Return "38.3 images/sec ± 0.40", or why the speed is not reliable; None if there is no speed."""
    speed = result.throughput
    if speed is None:
        return None
    mean = f"{units.images_per_sec(speed.mean)} {result.unit}/sec"
    if busy := _busy(result):
        return f"{mean}, {NOT_RELIABLE}: {busy}"
    return f"{mean} \N{PLUS-MINUS SIGN} {units.images_per_sec(speed.margin)}"


def _busy(result: Result) -> str | None:
    """Return what kept the host busy, so that the speed is not reliable; None if nothing did."""
    return None if result.host_load is None else result.host_load.busy


def title(result: Result, *, ended: bool = True) -> str:
    """Return in one line what ran and on what. `ended`: also how it ended."""
    spec = result.spec
    devices = [row.device for row in result.devices]
    kind = {"cpu": "CPU device", "gpu": "GPU"}.get(result.backend, "device")
    parts = [f"{spec.get('model', 'a model')} on {units.counted(len(devices), kind)}"]
    if len(hosts := {device.rank for device in devices}) > 1:
        parts[0] += f" of {len(hosts)} hosts"
    if does := _OTHER_TASKS.get(str(spec.get("task"))):
        parts.append(does)
    elif spec.get("strategy"):
        parts.append(f"strategy {spec['strategy']}")
    elif mode := spec.get("variable_update"):
        place = _place(str(spec["ps_device"]), devices) if spec.get("ps_device") else None
        parts.append(str(mode) if place is None else f"{mode}, variables on {place}")
    if result.drills:
        parts.append(f"DRILL {' '.join(result.drills)}")
    if result.rehearsal_of:
        parts.append(f"rehearsal of {result.rehearsal_of}")
    if ended and result.status != "complete":
        parts.append(f"{result.status} after {units.counted(result.steps, 'step')}")
    return ", ".join(parts)


def _place(name: str, devices: Sequence[Device]) -> str:
    """Return the user's name of the device that holds variables; TensorFlow numbers devices differently."""
    on_host = "the CPU" if name == "/CPU:0" else place_name(name, devices)
    return next((device.short_name for device in devices if device.device == name), on_host)


def verdict_lines(result: Result, *, verbose: bool = True) -> list[Span]:
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
        lines.append(run_verdict_line(whole))
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
    if any(one is not None and one.word == SLOW and one.from_step is not None for one in verdicts):
        return []
    speeds = f"from {units.images_per_sec(change.before)} to {units.images_per_sec(change.after)} images/sec"
    verb, how = ("Slowed", "slower") if change.after < change.before else ("Sped up", "faster")
    share = percent(100 * abs(1 - change.after / change.before))
    return [(f"{verb} {speeds} after step {change.after_step:,} ({share}% {how}).", "yellow")]


def run_verdict_line(verdict: Verdict) -> Span:
    """Return the verdict on all devices together."""
    style = {SLOW: ANOMALY_STYLE, CANNOT_TELL: "yellow"}.get(verdict.word, "")
    return (f"{'! ' if verdict.word == SLOW else ''}{verdict.says}.", style)


def _not_slow_lines(result: Result, *, others: bool) -> list[Span]:
    """Return the bounds for the devices that are not slow, and why some were not compared.

    `others`: there are slow devices.
    """
    known = [(row.device, row.verdict) for row in result.devices if row.verdict is not None]
    compared = [one for one in known if one[1].word != SLOW and one[1].resolution_percent is not None]
    lines: list[Span] = []
    if compared:
        open_ones = any(verdict.word == CANNOT_TELL for _, verdict in compared)
        others = others or len(compared) < len(known)
        lines.append((_excluded(result, compared, others=others), "yellow" if open_ones else ""))
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


def _at_most_slower(of: Sequence[tuple[Device, Verdict]], *, others: bool) -> str:
    """Return the bound by which these devices can be slower. `others`: there are other devices."""
    names = _names([device for device, _ in of])
    bounds = [one.percent_under_high for _, one in of if one.percent_under_high is not None]
    if not bounds:
        return (
            f"{names} {'was' if len(of) == 1 else 'were'} not compared"
            if others
            else "No device was compared"
        )
    bound = f"{at_most(max(*bounds, 0.1))}% slower than its peers ({100 * CONFIDENCE:g}% confidence)"
    if not others:
        return f"No device is more than {bound}"
    return f"{names}: {'at most' if len(of) == 1 else 'each at most'} {bound}"


def _names(devices: Sequence[Device]) -> str:
    if len(devices) > MAX_NAMES:
        return f"{len(devices)} devices"
    return ", ".join(device.short_name for device in devices)


def _excluded(result: Result, compared: Sequence[tuple[Device, Verdict]], *, others: bool) -> str:
    """Return by how much these devices can be slower; if that is much, also which run would exclude 5 %."""
    if others and all(is_ahead(verdict) for _, verdict in compared):
        return f"{_names([device for device, _ in compared])}: not slower than the others."
    looking = [
        f"{device.short_name} was {percent(under)}% slower than its peers in these steps, which is not "
        "significant. "
        for device, verdict in compared
        if (under := verdict.percent_under or 0.0) > SLOW_PERCENT
    ]
    excluded = f"{''.join(looking)}{_at_most_slower(compared, others=others)}."
    if max(verdict.percent_under_high or 0.0 for _, verdict in compared) <= EVEN_PERCENT:
        return excluded
    more = [verdict.more_steps for _, verdict in compared if verdict.more_steps is not None]
    if not more:
        short = next((one.why for _, one in compared if one.why is not None), None)
        return excluded if short is None else f"{excluded} {short[0].upper()}{short[1:]}."
    steps = _two_figures(result.steps + max(more))
    seconds = steps * (result.counted_s or 0.0) / max(result.steps, 1)
    if seconds > MAX_MORE_S:
        return excluded
    what = f"{steps:,} steps" if result.spec.get("task") == PROGRAM else f"--num-batches {steps}"
    took = units.seconds(seconds) if seconds < MINUTES_S else f"{seconds / 60:.0f} min"
    return f"{excluded} To detect a slowdown of {EVEN_PERCENT:g}%: {what}, about {took}."


def _two_figures(count: int) -> int:
    """Round up to two figures, because it is an estimate."""
    scale: int = 10 ** max(0, len(str(count)) - 2)
    return -(-count // scale) * scale


def failure_lines(result: Result) -> list[str]:
    """Return why a run did not complete, what to do, and the worker's last lines; empty if it completed."""
    failure = result.failure
    if failure is None:
        return []
    ended = "Interrupted" if result.status == "interrupted" else "Failed"
    lines = [f"{ended}: {failure.cause}", f"What to do: {failure.remedy}"]
    if failure.last_lines:
        lines += ["The last lines of the worker:", *(f"  {one.expandtabs()}" for one in failure.last_lines)]
    return lines


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
    first = repeats.runs[:1]
    says = [Styled(said, "") for run in first for said in run.says]
    busy = [found for run in repeats.runs if (found := _busy(run))]
    doubts = [Styled(not_reliable(busy, len(repeats.runs), "repeat"), ANOMALY_STYLE)] if busy else []
    return of_sections(
        [
            ("", doubts),
            ("", [*(Styled(title(run, ended=False), "bold") for run in first), *says]),
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
    text = f"repeat {number}  {speed_words(run)}, median {units.images_per_sec(speed.median)}"
    marked = f"  ! {'; '.join(_slow_says(run))}" if run.anomalies else ""
    return Styled(text + marked, ANOMALY_STYLE if marked else "")


def _together(repeats: Repeats) -> str:
    found = repeats.images_per_sec
    if found is None:
        return f"None of {repeats.asked} repeats gave a speed."
    spread = "" if found.deviation is None else f" ± {units.images_per_sec(found.deviation)}"
    return (
        f"{units.images_per_sec(found.mean)} images/sec{spread} over {found.of} of {repeats.asked} repeats, "
        f"from {units.images_per_sec(found.lowest)} to {units.images_per_sec(found.highest)}"
    )


def program_lines(result: Result) -> Iterator[str]:
    """Yield the speed of the program's reported steps, if any, what is slow, and what the samples show.

    Trivial results are skipped: a program that runs for a few seconds has no verdict.
    """
    speed = result.throughput
    if speed is not None:
        first = units.counted(result.warmup_steps, "step")
        middle, steps = units.images_per_sec(speed.median), units.counted(result.steps, "step")
        yield f"{speed_words(result)}, median {middle}, over {steps} after {first} of warm-up"
    if any(row.images_per_sec is not None for row in result.devices):
        yield from (text for text, _ in verdict_lines(result))
    elif result.run_verdict is not None:
        yield run_verdict_line(result.run_verdict)[0]
    if result.placed is not None and result.placed.word == OUTSIDE:
        yield f"! {result.placed.says}"
    hardware = result.hardware
    if hardware is None:
        return
    for fault in hardware.faults:
        yield fault.says if fault.severity == "info" else f"! {fault.says}"
    if hardware.word == SOUND:
        yield f"hardware: {hardware.says}{_not_checked(hardware)}"


def _not_checked(hardware: Hardware) -> str:
    """Return which checks were not run, with the reasons. With one GPU there are no peers to compare."""
    whys = "; ".join(f"{name} ({why})" for name, why in hardware.not_checked.items())
    return f"; not checked: {whys}" if whys else ""
