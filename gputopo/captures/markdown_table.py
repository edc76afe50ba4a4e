"""A Markdown table of GPUs, a row each, as inventory scripts print it: text in, Machine out.

With a header the columns are those that it names. Without one, only what a cell's own shape makes certain is
read: a PCI address, a name, and of two columns of pairs that with numbers no generation has is the width.
Which of a pair is the highest is shown by the pairs themselves, for a link is never above its highest. What
stays uncertain (watts: draw or limit?) is Unread.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gputopo.captures.ledger import Claims
from gputopo.captures.pci import pci_tree
from gputopo.values.errors import InputError
from gputopo.values.machine import Gpu, Machine, MemoryMib, Pcie, PowerW, Unread

SOURCE = "markdown table"
READS = "a Markdown table of GPUs"
FACTS = "the named columns"

_HINT = "give the table with its header line"
_RULE = re.compile(r"\|?[\s:|-]*--[\s:|-]*")
_PAIR = re.compile(r"(\d{1,2}) ?/ ?(\d{1,2})")
_MIB = re.compile(r"(\d{1,7}) ?MiB")
_WATTS = re.compile(r"(\d{1,4}(?:\.\d{1,3})?) ?W")
_SWITCH = {"Enabled": True, "Disabled": False, "On": True, "Off": False}
_CARD = re.compile(r"\b(?:NVIDIA|GeForce|Quadro|Tesla|RTX|GTX|TITAN)\b", re.IGNORECASE)
_GENERATIONS = range(1, 8)
_WIDTHS = (1, 2, 4, 8, 12, 16, 32)
# A header's words, the first that fits: what the column is.
_TITLES = (
    ("address", r"\bbus|pci.*(?:id|addr)|^bdf$"),
    ("gen", r"\bgen"),
    ("width", r"width|lanes"),
    ("limit", r"(?:power|w).*(?:limit|cap)|(?:limit|cap).*power|^tdp"),
    ("draw", r"(?:power|w).*(?:draw|usage|now)"),
    ("used", r"(?:mem|vram).*(?:used|usage)"),
    ("total", r"\bmem|vram"),
    ("persistence", r"persist"),
    ("name", r"name|model|card"),
    ("index", r"^#$|^idx$|index|^gpu$|^id$|^gpu id$"),
)


@dataclass(frozen=True, slots=True)
class _Row:
    line: int
    cells: tuple[str, ...]


def recognise(text: str) -> bool:
    """Return whether a line of the text is a table's row with a PCI address in a cell."""
    return bool(_rows(text))


def claims(text: str) -> Claims:
    """Return the rows with an address, and the header above them."""
    rows = {row.line for row in _rows(text)}
    lines = text.splitlines()
    first = min(rows, default=0)
    header = {first - 1, first - 2} if first > 2 and _RULE.fullmatch(lines[first - 2].strip()) else set()
    return Claims(frozenset(rows), frozenset(header))


def parse(text: str, *, origin: str) -> Machine:
    """Read the table. Raises InputError if the rows differ in width, or one GPU stands in it twice."""
    rows = _rows(text)
    if not rows:
        raise InputError(f"{origin} has no row of a table with a PCI address", _HINT)
    if odd := next((row for row in rows if len(row.cells) != len(rows[0].cells)), None):
        raise InputError(f"{origin}: the row in line {odd.line} has {len(odd.cells)} cells", _HINT)
    titles = _header(text, rows[0])
    columns = _named(titles) if titles else _shaped(rows)
    first_is_max = {
        column: _first_is_max(titles[column] if titles else "", [row.cells[column] for row in rows])
        for column, kind in columns.items()
        if kind in ("gen", "width")
    }
    gpus: list[Gpu] = []
    unread: list[Unread] = []
    for position, row in enumerate(rows):
        gpu, left = _gpu(position, row, columns, first_is_max)
        gpus.append(gpu)
        if left:
            unread.append(Unread(source=SOURCE, line=row.line, text=f"GPU {gpu.index}: {', '.join(left)}"))
    for known in ([gpu.index for gpu in gpus], [gpu.pci_address for gpu in gpus]):
        if len(set(known)) != len(known):
            raise InputError(f"{origin} has one GPU in two rows", "give one file for each machine")
    return Machine(source=SOURCE, gpus=tuple(sorted(gpus, key=lambda gpu: gpu.index)), unread=tuple(unread))


def _cells(line: str) -> tuple[str, ...]:
    return tuple(cell.strip().strip("`*").strip() for cell in line.strip().strip("|").split("|"))


def _rows(text: str) -> list[_Row]:
    found = (_Row(n, _cells(line)) for n, line in enumerate(text.splitlines(), 1) if line.count("|") >= 2)
    return [row for row in found if any(pci_tree.address(cell) for cell in row.cells)]


def _header(text: str, first: _Row) -> tuple[str, ...] | None:
    """Return the titles above the first row, if there is a header over a rule and as wide as the rows."""
    lines = text.splitlines()[: first.line - 1]
    if len(lines) < 2 or not _RULE.fullmatch(lines[-1].strip()):
        return None
    titles = _cells(lines[-2])
    return titles if len(titles) == len(first.cells) else None


def _named(titles: Sequence[str]) -> dict[int, str]:
    """Return what each column is by its title; a title that fits nothing, or twice the same, is left out."""
    kinds = {
        column: kind
        for column, title in enumerate(titles)
        if (kind := next((k for k, words in _TITLES if re.search(words, title.lower())), None))
    }
    return {c: kind for c, kind in kinds.items() if list(kinds.values()).count(kind) == 1}


def _shaped(rows: Sequence[_Row]) -> dict[int, str]:
    """Return what each column surely is by the shape of its cells."""
    columns = list(zip(*(row.cells for row in rows), strict=True))
    kinds: dict[int, str] = {}
    pairs: list[int] = []
    for column, cells in enumerate(columns):
        if all(pci_tree.address(cell) for cell in cells):
            kinds[column] = "address"
        elif all(_CARD.search(cell) for cell in cells):
            kinds[column] = "name"
        elif column == 0 and all(re.fullmatch(r"\d{1,3}", cell, re.ASCII) for cell in cells):
            kinds[column] = "index"
        elif all(_PAIR.fullmatch(cell) for cell in cells):
            pairs.append(column)
        elif all(_MIB.fullmatch(cell) for cell in cells) and _same_for_each_card(columns, cells, rows):
            kinds[column] = "total"
    if len(pairs) == 2:
        for gen, width in (pairs, pairs[::-1]):
            fits = _all_in(columns[gen], _GENERATIONS) and _all_in(columns[width], _WIDTHS)
            turned = _all_in(columns[width], _GENERATIONS) and _all_in(columns[gen], _WIDTHS)
            if fits and not turned:
                kinds |= {gen: "gen", width: "width"}
    return {c: kind for c, kind in kinds.items() if list(kinds.values()).count(kind) == 1}


def _same_for_each_card(columns: Sequence[Sequence[str]], cells: Sequence[str], rows: Sequence[_Row]) -> bool:
    """Return whether cards of one name always have one number: then it is the size, not what is in use."""
    name = next((column for column in columns if all(_CARD.search(cell) for cell in column)), None)
    return name is not None and len(rows) > 1 and len(set(zip(name, cells, strict=True))) == len(set(name))


def _all_in(cells: Sequence[str], allowed: Sequence[int]) -> bool:
    pairs = [match for cell in cells if (match := _PAIR.fullmatch(cell))]
    return all(int(number) in allowed for pair in pairs for number in pair.groups())


def _first_is_max(title: str, cells: Sequence[str]) -> bool | None:
    """Return whether the first of each pair is the highest; None where neither title nor pairs show it."""
    words = re.findall(r"max|cur|now", title.lower())
    if len(set(words)) > 1:
        return bool(words[0] == "max")
    pairs = [(int(m[1]), int(m[2])) for cell in cells if (m := _PAIR.fullmatch(cell))]
    if all(a >= b for a, b in pairs):
        return True
    return False if all(a <= b for a, b in pairs) else None


def _gpu(
    position: int, row: _Row, columns: Mapping[int, str], first_is_max: Mapping[int, bool | None]
) -> tuple[Gpu, list[str]]:
    """Return the GPU of a row, and the cells of unknown content."""
    cells_of: dict[str, str] = {}
    pairs: dict[str, tuple[int, int]] = {}
    left: list[str] = []
    for column, cell in enumerate(row.cells):
        kind = columns.get(column)
        pair = _PAIR.fullmatch(cell)
        max_first = first_is_max.get(column)
        allowed = _GENERATIONS if kind == "gen" else _WIDTHS
        if kind in ("gen", "width") and pair and max_first is not None and _all_in([cell], allowed):
            a, b = int(pair[1]), int(pair[2])
            pairs[kind] = (a, b) if max_first else (b, a)
        elif kind is not None and _fits(kind, cell):
            cells_of[kind] = cell
        elif cell:
            left.append(cell)
    index = cells_of.get("index", "")
    gpu = Gpu(
        index=int(index) if index else position,
        name=cells_of.get("name"),
        pci_address=pci_tree.address(cells_of.get("address", "")),
        memory_mib=MemoryMib(total=_mib(cells_of.get("total")), used=_mib(cells_of.get("used"))),
        power_w=PowerW(limit=_watts(cells_of.get("limit")), draw=_watts(cells_of.get("draw"))),
        persistence_mode=_SWITCH.get(cells_of.get("persistence", "")),
        pcie=_pcie(pairs),
    )
    return gpu, left


def _fits(kind: str, cell: str) -> bool:
    shapes: dict[str, bool] = {
        "index": re.fullmatch(r"\d{1,3}", cell, re.ASCII) is not None,
        "address": pci_tree.address(cell) is not None,
        "total": _MIB.fullmatch(cell) is not None,
        "used": _MIB.fullmatch(cell) is not None,
        "limit": _WATTS.fullmatch(cell) is not None,
        "draw": _WATTS.fullmatch(cell) is not None,
        "persistence": cell in _SWITCH,
        "name": bool(cell),
    }
    return shapes.get(kind, False)


def _pcie(pairs: Mapping[str, tuple[int, int]]) -> Pcie:
    gen, width = pairs.get("gen", (None, None)), pairs.get("width", (None, None))
    return Pcie(gen_max=gen[0], gen_now=gen[1], width_max=width[0], width_now=width[1])


def _mib(text: str | None) -> int | None:
    match = _MIB.fullmatch(text or "")
    return int(match[1]) if match else None


def _watts(text: str | None) -> float | None:
    match = _WATTS.fullmatch(text or "")
    return float(match[1]) if match else None
