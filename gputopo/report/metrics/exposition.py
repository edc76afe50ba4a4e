"""Prometheus' text exposition format 0.0.4: series are gathered here and written metric by metric.

The format: prometheus.io/docs/instrumenting/exposition_formats. One metric's series stand together under its
HELP and TYPE lines, and no two series have the same name and labels.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from gputopo.report.layout import plain
from gputopo.values.fields import fields_of
from gputopo.values.subject import values_at

Kind = Literal["gauge", "counter"]
Label = str | int | None
Value = float | bool | None

MIB = 2**20  # bytes
_PREFIX = "gputopo_"


class Exposition:
    """Gathers series. One without a value is left out, and so is a label without one: unknown is never 0."""

    def __init__(self) -> None:
        self._heads: dict[str, tuple[Kind, str]] = {}
        self._series: dict[str, dict[str, str]] = {}

    def gauge(self, name: str, says: str, value: Value, /, **labels: Label) -> None:
        """Add a series whose value rises and falls. Its name gets `gputopo_` before it."""
        self._add("gauge", name, says, value, labels)

    def counter(self, name: str, says: str, value: Value, /, **labels: Label) -> None:
        """Add a series that only rises, except when it is reset. Its name must end in `_total`."""
        self._add("counter", name, says, value, labels)

    def counters(
        self, name: str, says: str, counts: Mapping[str, Value] | None, by: str, /, **labels: Label
    ) -> None:
        """Add a counter for each kind that is counted; the kind is its label `by`, behind the others."""
        for kind, count in (counts or {}).items():
            self._add("counter", name, says, count, {**labels, by: kind})

    def info(self, name: str, says: str, /, **labels: Label) -> None:
        """Add facts that are words: a series of value 1 with the words as labels."""
        self._add("gauge", f"{name}_info", says, 1, labels)

    def states(
        self, name: str, says: str, states: Iterable[str], now: str | None, /, **labels: Label
    ) -> None:
        """Add a state set: a series for each state, 1 for the one of now, 0 for the others.

        As OpenMetrics has it, but for the label, which is `state`, as in the node exporter's.
        """
        for state in () if now is None else dict.fromkeys([*states, now]):
            self._add("gauge", name, says, state == now, {**labels, "state": state})

    def text(self) -> str:
        """Return all series as text that ends with a newline, or nothing where there are none."""
        return "".join(
            f"# HELP {name} {_escaped(says)}\n# TYPE {name} {kind}\n"
            + "".join(f"{name}{labels} {value}\n" for labels, value in self._series[name].items())
            for name, (kind, says) in self._heads.items()
        )

    def _add(self, kind: Kind, name: str, says: str, value: Value, labels: dict[str, Label]) -> None:
        assert name.endswith("_total") == (kind == "counter"), name
        if value is None:
            return
        name = _PREFIX + name
        self._heads.setdefault(name, (kind, says))
        # Of two series with the same labels the first counts: the format allows no second.
        self._series.setdefault(name, {}).setdefault(_labels(labels), _number(value))


# What one unit of a fact is in Prometheus' base unit: times the first over the second.
_BASE_UNITS = {
    "MHz": (10**6, 1),
    "MiB": (MIB, 1),
    "GB/s": (10**9, 1),
    "GT/s": (10**9, 1),
    "Gbit/s": (10**9 // 8, 1),
    "%": (1, 100),
    "ns": (1, 10**9),
}


def add_facts(out: Exposition, value: msgspec.Struct, labels: Mapping[str, Label]) -> None:
    """Add the series that the fields of a value and of the values within it declare, but of no lists."""
    for path, field in fields_of(type(value)).items():
        metric = field.metric
        if metric is None or not field.leaf or "[]" in path:
            continue
        found = next(iter(values_at(value, path)), None)
        all_labels = {**labels, **field.labels}
        if isinstance(found, dict):
            counts = {key: _in_base_unit(count, field.unit) for key, count in found.items()}
            out.counters(metric.name, metric.help, counts, metric.by, **all_labels)
        elif field.counter:
            out.counter(metric.name, metric.help, _in_base_unit(found, field.unit), **all_labels)
        else:
            out.gauge(metric.name, metric.help, _in_base_unit(found, field.unit), **all_labels)


def info_labels(value: msgspec.Struct) -> dict[str, Label]:
    """Return the labels of a value's `_info` series: the facts that are declared as such, by their names."""
    return {
        path.rpartition(".")[2]: found
        for path, field in fields_of(type(value)).items()
        if field.fact.info and "[]" not in path
        for found in values_at(value, path)
    }


def _in_base_unit(value: float | bool | None, unit: str) -> float | bool | None:
    if value is None or unit not in _BASE_UNITS:
        return value
    times, over = _BASE_UNITS[unit]
    return value * times if over == 1 else value / over


def _labels(labels: dict[str, Label]) -> str:
    pairs = (
        f'{name}="{_escaped(str(value), quote=True)}"' for name, value in labels.items() if value is not None
    )
    text = ",".join(pairs)
    return f"{{{text}}}" if text else ""


def _escaped(text: str, *, quote: bool = False) -> str:
    """Escape what the format wants escaped; other control characters, which move cursors, become `?`."""
    text = text.replace("\\", r"\\").replace('"', r"\"" if quote else '"')
    return r"\n".join(plain(part) for part in text.split("\n"))


def _number(value: float | bool) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return str(int(value))
    return str(int(value)) if isinstance(value, bool) else str(value)
