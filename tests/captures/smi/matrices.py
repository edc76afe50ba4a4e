"""Invented matrices of `nvidia-smi topo -m`, and the many forms in which people paste them."""

from dataclasses import dataclass

from hypothesis import strategies as st

HOPS = ("PIX", "PXB", "PHB", "NODE", "SYS")
TITLES = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
LEGEND = (
    "Legend:",
    "",
    "  X    = Self",
    "  SYS  = Connection traversing PCIe and the interconnect between NUMA nodes",
    "  PIX  = Connection traversing at most a single PCIe bridge",
    "  NV#  = Connection traversing a bonded set of # NVLinks",
)


@dataclass(frozen=True)
class Invented:
    """A matrix: its devices, `cells[i][j]` between them, and the words of its affinity columns by GPU."""

    gpus: int
    nics: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    affinity: tuple[tuple[str, ...], ...]
    titles: tuple[str, ...]

    @property
    def devices(self) -> tuple[str, ...]:
        return (*(f"GPU{i}" for i in range(self.gpus)), *self.nics)


@st.composite
def matrices(draw: st.DrawFn, *, most_gpus: int = 9) -> Invented:
    gpus = draw(st.integers(1, most_gpus))
    style = draw(st.sampled_from(["NIC{}", "mlx5_{}", "mlx4_{}"]))
    nics = tuple(style.format(i) for i in range(draw(st.integers(0, 5))))
    count = gpus + len(nics)
    cells = [["X"] * count for _ in range(count)]
    pairs = [(a, b) for a in range(count) for b in range(a)]
    # All cells in one draw, a byte each: hundreds of draws would take ten times as long as what is tested.
    for (a, b), byte in zip(pairs, _bytes(draw, len(pairs)), strict=True):
        nvlinks = a < gpus and byte > 127
        cells[a][b] = cells[b][a] = f"NV{1 + byte % 18}" if nvlinks else HOPS[byte % len(HOPS)]
    titles = TITLES[: draw(st.integers(0, 3))]
    affinity = []
    places = _bytes(draw, 3 * gpus)
    for low, numa, more in zip(places[::3], places[1::3], places[2::3], strict=True):
        words = (f"{low}-{low + 1 + more % 40},{low + 64}-{low + 90}", str(numa % 13), "N/A")
        affinity.append(words[: len(titles)])
    return Invented(gpus, nics, tuple(map(tuple, cells)), tuple(affinity), titles)


def _bytes(draw: st.DrawFn, count: int) -> bytes:
    return draw(st.binary(min_size=count, max_size=count))


def rows(matrix: Invented) -> list[list[str]]:
    """The words line by line, header first, with the empty cells that nvidia-smi leaves."""
    lines = [["", *matrix.devices, *matrix.titles]]
    for i, device in enumerate(matrix.devices):
        tail = list(matrix.affinity[i]) if i < matrix.gpus else [""] * len(matrix.titles)
        if len(tail) == 3:
            tail.insert(2, "")
        lines.append([device, *(" X " if cell == "X" else cell for cell in matrix.cells[i]), *tail])
    return lines


def tabbed(matrix: Invented) -> list[str]:
    return ["\t".join(words) for words in rows(matrix)]


def spaced(matrix: Invented) -> list[str]:
    """As a terminal shows it: tab stops every eight columns."""
    return [line.expandtabs(8).rstrip() for line in tabbed(matrix)]


def aligned(matrix: Invented) -> list[str]:
    """As an author aligns it by hand, two blanks between columns."""
    lines = [[word.strip() for word in words if word.strip()] for words in rows(matrix)[1:]]
    head = [*matrix.devices, *matrix.titles]
    width = 2 + max(len(word) for words in (head, *lines) for word in words)
    return ["".join(word.ljust(width) for word in words) for words in (["", *head], *lines)]


def wrapped(lines: list[str], width: int = 80) -> list[str]:
    """As some terminals are copied: a line goes on after a run of blanks."""
    return [
        (" " * 173).join(line[i : i + width] for i in range(0, len(line), width)) or line for line in lines
    ]


def broken(lines: list[str], width: int = 80) -> list[str]:
    """As other terminals are copied: a long line becomes several."""
    return [line[i : i + width] for line in lines for i in range(0, max(len(line), 1), width)]
