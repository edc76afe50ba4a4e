"""Prometheus' text exposition format 0.0.4: series are gathered here and written metric by metric.

The format: prometheus.io/docs/instrumenting/exposition_formats. One metric's series stand together under its
HELP and TYPE lines, and no two series have the same name and labels.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Literal

from gputopo.report.layout import plain

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
        """Add a series that only rises, except when it starts anew. Its name must end in `_total`."""
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
        """Give all series as text that ends with a newline, or nothing where there are none."""
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


def times(value: float | None, factor: int) -> float | None:
    """Give a number in its base unit, of which there are so many in one of its own; unknown stays unknown."""
    return None if value is None else value * factor


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
