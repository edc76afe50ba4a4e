"""The report of a run for people: the table of the devices, the figures of the whole run, the verdict."""

from gputopo.report import units
from gputopo.report.document import Document, Rows, Styled, of_sections
from gputopo.report.layout import Span
from gputopo.report.runs.devices import device_table
from gputopo.report.runs.facts import ANOMALY_STYLE, run_facts
from gputopo.runs.devices import place_name, short_name_of
from gputopo.runs.repeats import Repeats
from gputopo.runs.verdict.words import at_most, costs, looks
from gputopo.values.run.events import NETWORK, Device
from gputopo.values.run.result import DeviceResult, Result
from gputopo.values.run.verdict import CANNOT_TELL, EVEN, SLOW, Verdict

_OTHER_TASKS = {"forward": "forward passes", "eval": "evaluation", "input": "the input alone"}


def run_document(result: Result) -> Document:
    """Return the report of a run, complete or not.

    The title, the failure, the run's messages, the slow devices, the tables, the figures. What was not
    measured is stated in words.
    """
    failure = [Styled(text, "") for text in failure_lines(result)]
    says = [*(Styled(text, "") for text in result.says), *(Styled(*one) for one in verdict_lines(result))]
    found = tuple(run_facts(result))
    facts = Rows(tuple((one.name, one.text) for one in found), tuple(one.style for one in found))
    return of_sections(
        [
            ("", [Styled(title(result), "bold"), *failure]),
            ("", says),
            ("", [device_table(result)] if result.devices else []),
            ("", [facts]),
        ]
    )


def title(result: Result, *, ended: bool = True) -> str:
    """Return what ran, on what and, unless not wanted, how it ended, in one line."""
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
        place = place_name(str(spec["ps_device"]), devices) if spec.get("ps_device") else None
        parts.append(str(mode) if place is None else f"{mode}, variables on {place}")
    if result.drills:
        parts.append(f"DRILL {' '.join(result.drills)}")
    if result.rehearsal_of:
        parts.append(f"rehearsal of {result.rehearsal_of}")
    if ended and result.status != "complete":
        parts.append(f"{result.status} after {units.counted(result.steps, 'step')}")
    return ", ".join(parts)


def verdict_lines(result: Result) -> list[Span]:
    """Return which devices are slow and what they cost, which are even, and where the run cannot tell."""
    lines = [(f"! {says}", ANOMALY_STYLE) for says in _slow_says(result)]
    slow: dict[str, list[DeviceResult]] = {}
    for row in result.devices:
        if row.verdict is not None and row.verdict.cost is not None:
            slow.setdefault(row.verdict.says, []).append(row)
    for first, *others in slow.values():
        if first.verdict is not None and first.verdict.cost is not None:
            is_of_host = others or first.verdict.part == NETWORK
            name = f"host {first.device.host}" if is_of_host else short_name_of(first.device)
            lines.append((f"{costs(name, first.verdict.cost)}.", ANOMALY_STYLE))
    lines += _even_lines(result)
    lines += _unknown_lines(result)
    if result.run_verdict is not None:
        lines.append(run_verdict_line(result.run_verdict))
    if all(row.verdict is None for row in result.devices):
        lines.append((f"Slow devices: the check was {result.anomaly_check}.", "yellow"))
    return lines


def _slow_says(result: Result) -> list[str]:
    """Return the sentences on slow devices; that on a host, which all its devices have, once."""
    return list(dict.fromkeys(anomaly.says for anomaly in result.anomalies))


def run_verdict_line(verdict: Verdict) -> Span:
    """Return the verdict on all devices alike."""
    style = {SLOW: ANOMALY_STYLE, CANNOT_TELL: "yellow"}.get(verdict.word, "")
    return (f"{'! ' if verdict.word == SLOW else ''}{verdict.says}.", style)


def _even_lines(result: Result) -> list[Span]:
    """Return the line on the devices that are even, with the largest of their bounds; empty if none is.

    And one for each that is slow in a few steps all the same.
    """
    rows = [row for row in result.devices if row.verdict is not None and row.verdict.word == EVEN]
    bounds = [row.verdict.percent_under_high or 0.0 for row in rows if row.verdict is not None]
    if not rows:
        return []
    names = ", ".join(short_name_of(row.device) for row in rows)
    peers = "its peers" if len(rows) == 1 else "their peers"
    all_even = len(rows) == len(result.devices)
    within = f"All devices are even with their peers to within {at_most(max(bounds))} %."
    some = f"{names}: not slower than {peers}, by {at_most(max(bounds))} % at most."
    return [
        (within if all_even else some, ""),
        *(
            (f"{row.verdict.says}.", "yellow")
            for row in rows
            if row.verdict is not None and row.verdict.share_of_steps is not None
        ),
    ]


def _unknown_lines(result: Result) -> list[Span]:
    """Return a line for each reason why the run cannot tell, with its devices and what they look like."""
    by_reason: dict[str | None, list[tuple[Device, Verdict]]] = {}
    for row in result.devices:
        if row.verdict is not None and row.verdict.word == CANNOT_TELL:
            # Devices differ by decimals in what the run resolves: the largest stands for all.
            resolved = row.verdict.resolution_percent is not None
            by_reason.setdefault(None if resolved else row.verdict.why, []).append((row.device, row.verdict))
    lines = []
    for devices in by_reason.values():
        names = ", ".join(short_name_of(device) + looks(verdict) for device, verdict in devices)
        worst = max((verdict for _, verdict in devices), key=lambda one: one.resolution_percent or 0.0)
        lines.append((f"Cannot tell for {names}: {worst.why}.", "yellow"))
    return lines


def failure_lines(result: Result) -> list[str]:
    """Return why a run did not complete, what to do, and the last lines of the worker; empty if it did."""
    failure = result.failure
    if failure is None:
        return []
    ended = "Interrupted" if result.status == "interrupted" else "Failed"
    lines = [f"{ended}: {failure.cause}", f"What to do: {failure.remedy}"]
    if failure.last_lines:
        lines += ["The last lines of the worker:", *(f"  {one.expandtabs()}" for one in failure.last_lines)]
    return lines


def repeats_document(repeats: Repeats) -> Document:
    """Return the report of repeated runs: what ran, each repeat with how it ended, mean and spread."""
    first = repeats.runs[:1]
    says = [Styled(said, "") for run in first for said in run.says]
    return of_sections(
        [
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
    text = (
        f"repeat {number}  {units.images_per_sec(speed.mean)} images/sec "
        f"± {units.images_per_sec(speed.uncertainty)}, median {units.images_per_sec(speed.median)}"
    )
    marked = f"  ! {'; '.join(_slow_says(run))}" if run.anomalies else ""
    return Styled(text + marked, ANOMALY_STYLE if marked else "")


def _together(repeats: Repeats) -> str:
    found = repeats.images_per_sec
    if found is None:
        return f"No repeat of {repeats.asked} gave a speed."
    spread = "" if found.deviation is None else f" ± {units.images_per_sec(found.deviation)}"
    return (
        f"{units.images_per_sec(found.mean)} images/sec{spread} over {found.of} of {repeats.asked} repeats, "
        f"from {units.images_per_sec(found.lowest)} to {units.images_per_sec(found.highest)}"
    )
