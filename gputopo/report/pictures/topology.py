"""A picture of a machine: NUMA nodes, bridges and switches above the GPUs, NVLinks below by rate."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from gputopo.report.bandwidth.pairs import SHADES
from gputopo.report.document import Picture
from gputopo.report.findings import short_model
from gputopo.report.layout import plain
from gputopo.report.machine.tree import Branch, pci_branches
from gputopo.report.pictures.drawing import BAD, BOX, DASHES, FAINT, GOOD, INK, LINE, WARN, Canvas, short
from gputopo.topology import joined_by_hops
from gputopo.values.bandwidth import gb
from gputopo.values.finding import Finding
from gputopo.values.grouping import grouped
from gputopo.values.index_ranges import index_ranges
from gputopo.values.machine import Hop, Machine
from gputopo.values.rates import host_link_rates, pair_speeds

_LEAF, _LEVEL, _BOX_HEIGHT, _MARGIN = 1.45, 0.95, 0.5, 0.25  # inches
_LETTERS = 22  # in a line of a box
_MAX_ARCS = 40  # pairs; arcs of more pairs cannot be told apart
# The colour for each shade of the matrix, the fastest first.
_RATE_COLOURS = dict(zip((share for share, _, _ in SHADES), (GOOD, INK, WARN, BAD), strict=True))
_SEVERITY_COLOURS = {"error": BAD, "warning": WARN}
_NEAR = ((Hop.PIX, "PCIe switch"), (Hop.PXB, "PCIe switches"), (Hop.PHB, "host bridge"), (Hop.NODE, ""))


def topology_picture(machine: Machine, findings: Iterable[Finding] = ()) -> Picture | None:
    """Return the machine, with marks on the GPUs that have findings; None if there are no GPUs.

    Connections are coloured by their measured rate, if any, as a share of the fastest of their kind. Without
    a PCI tree, the picture is drawn from the classes of the pairs.
    """
    if not machine.gpus:
        return None
    tops = pci_branches(machine) if any(gpu for gpu in machine.pci if gpu.kind == "gpu") else []
    tops = [top for top in tops if top.children] or _by_hops(machine)
    nodes = _placed(tops)
    leaves = [node for node in nodes if not node.children]
    nvlinks = {pair: link.nvlinks for pair, link in machine.links_by_pair.items() if link.nvlinks}
    below = 1.0 if nvlinks else 0.0
    levels = max(node.level for node in nodes) + 1
    width = max(len(leaves), 3) * _LEAF + 2 * _MARGIN
    height = levels * _LEVEL + below + 2 * _MARGIN + 0.35
    serious = (finding for finding in findings if finding.severity in _SEVERITY_COLOURS)
    # A finding about a pair is listed for both GPUs.
    marked = grouped((gpu, finding) for finding in serious for gpu in finding.subject.gpus)
    copies = machine.bandwidth.copies if machine.bandwidth else ()
    host = host_link_rates(copies, "h2d", machine)
    canvas = Canvas(width, height)
    for node in nodes:
        for child in node.children:
            _connection(canvas, node, child, host)
    for node in nodes:
        _box(canvas, node, marked, machine)
    if nvlinks:
        places = {node.gpu: node.x for node in nodes if node.gpu is not None}
        _nvlinks(canvas, places, nvlinks, machine, max(node.y for node in nodes) + _BOX_HEIGHT / 2)
    if host or pair_speeds(machine.bandwidth):
        canvas.text((_MARGIN, height - 0.15), "Rate, of the fastest of its kind:", 7.5)
        for number, (share, colour) in enumerate(_RATE_COLOURS.items()):
            x, y = _MARGIN + 2.1 + number * 0.85, height - 0.15
            canvas.line([(x - 0.2, y), (x - 0.06, y)], (colour, None), 3)
            canvas.text((x, y), f"from {share:.0%}" if share else "below", 7.5)
    return canvas.picture("topology", "Topology", _in_words(machine, marked, nvlinks))


@dataclass
class _Node:
    """A box with its level and its position in inches."""

    lines: list[str]
    gpu: int | None
    level: int
    is_limited: bool
    children: list["_Node"]
    x: float = 0.0

    @property
    def y(self) -> float:
        return _MARGIN + _BOX_HEIGHT / 2 + self.level * _LEVEL


def _placed(tops: Sequence[Branch]) -> list[_Node]:
    """Return all boxes with their positions: leaves in a row at the bottom, others above their children."""
    nodes = [node for top in tops for node in _nodes(top, 0)]
    lowest = max(node.level for node in nodes)
    leaves = [node for node in nodes if not node.children]
    for position, leaf in enumerate(leaves):
        leaf.x = _MARGIN + (position + 0.5) * _LEAF
        leaf.level = lowest if leaf.gpu is not None or leaf.level else leaf.level
    for node in reversed(nodes):
        if node.children:
            node.x = (node.children[0].x + node.children[-1].x) / 2
    return nodes


def _nodes(branch: Branch, level: int) -> list[_Node]:
    """Return the box of a branch, followed by the boxes of all branches below it."""
    details = [plain(text) for text, _ in branch.details]
    links = [text for text in details if text.startswith(("gen ", "x"))]
    lines = [*_folded(plain(branch.name)), *(short(link, _LETTERS) for link in links[:1])]
    below = [_nodes(child, level + 1) for child in branch.children]
    is_limited = any(text.startswith("<-") for text in details)
    node = _Node(lines, branch.gpu, level, is_limited, [nodes[0] for nodes in below])
    return [node, *chain.from_iterable(below)]


def _by_hops(machine: Machine) -> list[Branch]:
    """Return a tree from the classes of the pairs: GPUs that are near one another share a box."""
    links = machine.links_by_pair
    groups: dict[frozenset[int], Branch] = {
        frozenset((gpu.index,)): Branch(f"GPU {gpu.index} {short_model(gpu.name)}".rstrip(), gpu=gpu.index)
        for gpu in machine.gpus
    }
    nodes = {gpu.index: gpu.numa_node for gpu in machine.gpus}
    for farthest, name in _NEAR:
        within = {
            members: [branch for inner, branch in groups.items() if inner <= members]
            for members in joined_by_hops(nodes, links, farthest)
        }
        groups = {
            gpus: branches[0] if len(branches) == 1 else Branch(name, [], branches)
            for gpus, branches in within.items()
        }
    if any(link.hop is None for link in links.values()):
        return [Branch("Host, PCIe unknown", [], [*groups.values()])]
    tops = []
    for members, branch in groups.items():
        known = {nodes[gpu] for gpu in members}
        number = known.pop() if len(known) == 1 else None
        name = f"NUMA {number}" if number is not None and number >= 0 else "CPU"
        tops.append(Branch(name, [], branch.children if branch.gpu is None and not branch.name else [branch]))
    return tops


def _connection(canvas: Canvas, node: _Node, child: _Node, host: Mapping[int, float]) -> None:
    rate = None if child.gpu is None else host.get(child.gpu)
    colour, wide = (FAINT, 1.0) if rate is None else (_rate_colour(rate / max(host.values())), 2.5)
    top, bottom = node.y + _BOX_HEIGHT / 2, child.y - _BOX_HEIGHT / 2
    middle = top + 0.15
    places = [(node.x, top), (node.x, middle), (child.x, middle), (child.x, bottom)]
    canvas.line(places, (colour, DASHES[1] if child.is_limited else None), wide)
    if rate is not None:
        canvas.text((child.x + 0.06, bottom - 0.09), f"{gb(rate)} GB/s", 7)
    if child.is_limited:
        canvas.text((child.x - 0.06, bottom - 0.09), "limits", 7, BAD, anchor="end")


def _box(canvas: Canvas, node: _Node, marked: Mapping[int, Sequence[Finding]], machine: Machine) -> None:
    findings = marked.get(node.gpu, ()) if node.gpu is not None else ()
    lost = any(gpu.index == node.gpu and gpu.lost for gpu in machine.gpus)
    severity = "error" if lost or any(finding.severity == "error" for finding in findings) else "warning"
    colour = _SEVERITY_COLOURS[severity] if findings or lost else LINE
    half, top = (_LEAF - 0.15) / 2, node.y - _BOX_HEIGHT / 2
    edge_wide = 2.5 if findings or lost else 1.0
    canvas.box((node.x - half, top), 2 * half, _BOX_HEIGHT, BOX, edge=colour, edge_wide=edge_wide)
    lines = [*node.lines, *(["LOST"] if lost else [])][:3]
    for number, text in enumerate(lines):
        height = node.y + (number - (len(lines) - 1) / 2) * 0.145
        is_name = number == 0 and node.gpu is not None
        canvas.text((node.x, height), text, 8.5 if is_name else 7.5, anchor="middle", bold=is_name)
    if findings:
        mark = "!" if len(findings) == 1 else f"! {len(findings)}"
        canvas.text((node.x + half - 0.05, top + 0.1), mark, 8, colour, anchor="end", bold=True)


def _nvlinks(
    canvas: Canvas,
    places: Mapping[int, float],
    nvlinks: Mapping[tuple[int, int], int],
    machine: Machine,
    bottom: float,
) -> None:
    """Draw the NVLinks below the boxes, which end at `bottom`."""
    shown = {pair: count for pair, count in nvlinks.items() if pair[0] in places and pair[1] in places}
    if not shown:
        return
    speeds = pair_speeds(machine.bandwidth)
    fastest = max((speed.gb_per_s for pair, speed in speeds.items() if pair in shown), default=0.0)
    pairs = len(places) * (len(places) - 1) // 2
    if len(shown) > _MAX_ARCS or (len(shown) == pairs > 3 and len(set(shown.values())) == 1):
        counts = index_ranges(sorted(set(shown.values())))
        y = bottom + 0.45
        for gpu, x in places.items():
            mine = [speeds[pair].gb_per_s for pair in shown if gpu in pair and pair in speeds]
            colour = _rate_colour(min(mine) / fastest) if mine else FAINT
            canvas.line([(x, bottom), (x, y)], (colour, None), 2.5)
        canvas.line([(min(places.values()), y), (max(places.values()), y)], (INK, None), 5)
        words = f"NVLink: {counts} to every peer" if len(shown) == pairs else f"NVLink: {counts} a pair"
        slowest = min((speeds[pair].gb_per_s for pair in shown if pair in speeds), default=0.0)
        measured = f", {gb(slowest)} to {gb(fastest)} GB/s measured" if fastest else ""
        canvas.text((sum(places.values()) / len(places), y + 0.2), words + measured, anchor="middle")
        return
    deepest = max(abs(places[a] - places[b]) for a, b in shown)
    for (a, b), count in shown.items():
        left, right = sorted((places[a], places[b]))
        depth = 0.25 + 0.5 * (right - left) / deepest
        colour = _rate_colour(speeds[a, b].gb_per_s / fastest) if (a, b) in speeds else FAINT
        canvas.arc(left, right, bottom, depth, colour, 0.8 + 0.6 * count)
        middle = (left + right) / 2
        canvas.box((middle - 0.08, bottom + depth - 0.08), 0.16, 0.16, BOX, edge=colour)
        canvas.text((middle, bottom + depth), f"{count}", 7.5, anchor="middle")


def _rate_colour(share: float) -> str:
    return next(colour for least, colour in _RATE_COLOURS.items() if share >= least)


def _in_words(
    machine: Machine, marked: Mapping[int, Sequence[Finding]], nvlinks: Mapping[tuple[int, int], int]
) -> str:
    names = Counter(plain(gpu.name or "GPU") for gpu in machine.gpus)
    words = [", ".join(f"{count} x {name}" for name, count in names.items())]
    hops = Counter(link.hop.value for link in machine.links if link.hop is not None)
    if hops:
        words.append("pairs of GPUs: " + ", ".join(f"{count} {hop}" for hop, count in hops.items()))
    if nvlinks:
        words.append(f"NVLinks between {len(nvlinks)} pairs")
    words += [
        f"GPU {gpu}: {', '.join(sorted({finding.id for finding in findings}))}"
        for gpu, findings in sorted(marked.items())
    ]
    return ". ".join(words) + "."


def _folded(text: str) -> list[str]:
    """Return a name in at most two lines; the number of a GPU is on the first line."""
    if text.startswith("GPU ") and " " in text[4:]:
        number, _, name = text[4:].partition(" ")
        return [f"GPU {number}", short(name, _LETTERS)]
    first, _, rest = text.partition(", ")
    return [short(first, _LETTERS), *([short(rest, _LETTERS)] if rest else [])]
