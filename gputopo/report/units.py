"""Numbers in a readable form. Values are in seconds, bytes and images per second; units are added here."""

import math

UNKNOWN = "–"  # noqa: RUF001  an en dash: not measured or not answered


def three_figures(value: float | None) -> str:
    """Write images per second or milliseconds with three or more figures: `4.08`, `38.3`, `4,618`."""
    if value is None:
        return UNKNOWN
    decimals = 2 if abs(value) < 9.995 else 1 if abs(value) < 999.95 else 0
    return f"{value:,.{decimals}f}"


def whole(value: float) -> str:
    """Write a number without decimals: `4,618`."""
    return f"{value:,.0f}"


def rough(value: float) -> str:
    """Write a number with one figure: `5,000`."""
    return f"{float(f'{value:.0e}'):,.0f}" if value >= 1 else f"{value:.1g}"


def percent(value: float | None) -> str:
    """Write a percentage with one decimal and without the sign."""
    return UNKNOWN if value is None else f"{value:.1f}"


def clock(mhz: float | None, of_max: float | None) -> str:
    """Write a clock in MHz, with the percentage of the GPU's maximum in brackets if it is known."""
    if mhz is None:
        return UNKNOWN
    return f"{mhz:.0f}" if of_max is None else f"{mhz:.0f} ({of_max:.0f})"


def pcie_link(generation: float | None, width: float | None) -> str | None:
    """Write a PCIe link as `gen 3 x16`, without the unknown part; None if both are unknown."""
    parts = ("gen {:g}", generation), ("x{:g}", width)
    return " ".join(form.format(value) for form, value in parts if value is not None) or None


def gpu_name(name: str | None) -> str:
    """Write the name of a GPU without the vendor; empty if it is unknown."""
    return (name or "").removeprefix("NVIDIA ").removeprefix("GeForce ")


def seconds(value: float | None) -> str:
    """Write a duration with its unit: `0.42 s`, `12.3 s`, `3 min 05 s`, `1 h 02 min`."""
    if value is None or not math.isfinite(value):
        return "unknown"
    if value < 59.95:
        return f"{value:.2f} s" if value < 9.995 else f"{value:.1f} s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def size(count: int) -> str:
    """Write a number of bytes in the binary unit that fits: `235.9 MiB`."""
    value = float(count)
    for unit in ("bytes", "KiB", "MiB"):
        if value < 1024:
            return f"{count} bytes" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def gib(mib: int) -> str:
    """Write mebibytes as gibibytes with one decimal: `62.8 GiB`."""
    return f"{mib / 1024:.1f} GiB"


def loss(value: float | None) -> str:
    """Write a loss; None is written as `not a number`."""
    return "not a number" if value is None else f"{value:.4g}"


def counted(count: int, singular: str) -> str:
    """Write a number with its noun: `1 step`, `1,200 steps`."""
    return f"{count} {singular}" if count == 1 else f"{count:,} {singular}s"
