"""The part of a bandwidth report about a soak: rates at its beginning and at its end, by GPU."""

from gputopo.copies.numbers import copied_bytes, ends, temperatures
from gputopo.report.bandwidth.numbers import number
from gputopo.report.bandwidth.part import part
from gputopo.report.document import Section
from gputopo.report.layout import NOT_ASKED, Column
from gputopo.report.units import size
from gputopo.values.bandwidth import Kind, Soak
from gputopo.values.machine import Machine

_KINDS: dict[str, tuple[Kind, ...]] = {
    "to\nGPU": ("h2d",),
    "from\nGPU": ("d2h",),
    "to other\nGPUs": ("p2p_direct", "p2p_staged"),
    "inside\nGPU": ("d2d_local",),
}


def soak_part(machine: Machine, soak: Soak | None) -> Section | None:
    """Return the table of a soak, None where there was none."""
    if soak is None or not soak.intervals:
        return None
    copied = copied_bytes(soak)
    gpus = sorted(copied)
    heat = {gpu: temperatures(machine.samples, gpu) for gpu in gpus}
    columns = [
        *(
            Column(head, tuple(_rates(soak, gpu, kinds) for gpu in gpus), side="right")
            for head, kinds in _KINDS.items()
        ),
        Column("copied", tuple(size(copied[gpu]) for gpu in gpus), side="right"),
        Column("max\n°C", tuple(str(max(heat[gpu], default=NOT_ASKED)) for gpu in gpus), side="right"),
    ]
    shown = tuple(one for one in columns if set(one.cells) != {NOT_ASKED})
    minutes = soak.intervals[-1].end_s / 60
    return part(
        "Soak",
        head=Column("", tuple(f"GPU{gpu}" for gpu in gpus)),
        groups=(shown,),
        notes=(
            f"GB/s in the first and the last quarter of {minutes:.1f} min; the host with all GPUs in both "
            "directions at once, all GPUs to other ones at once.",
        ),
    )


def _rates(soak: Soak, gpu: int, kinds: tuple[Kind, ...]) -> str:
    found = [pair for kind in kinds if (pair := ends(soak, gpu, kind, receives=kind == "h2d")) is not None]
    return ", ".join(map(number, found[0])) if found else NOT_ASKED
