"""Doubts about the machine as it was read: contradictions, unparsed lines, hidden or unknown topology."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import msgspec

from gputopo.findings.rule import MAX_MESSAGES, Fault, Rule, Threshold, check, present
from gputopo.reference import expected_of
from gputopo.topology import MAX_CUT_CPUS, class_name, implausible_pairs, looks_cut
from gputopo.values.facts import FactPath
from gputopo.values.fields import path_in_words
from gputopo.values.grouping import grouped
from gputopo.values.index_ranges import index_ranges, pairs_in_words, parse_cpus
from gputopo.values.machine import Gpu, Hop, Link, Machine
from gputopo.values.option import listed
from gputopo.values.subject import DRIVER, MACHINE, Subject

# `topo -m` also shows the NVLinks of idle GPUs, so a power state does not explain a board without NVLinks.
MIN_BOARD_GPUS = 2

TOPOLOGY_CONTRADICTION = Rule(
    "topology.contradiction",
    "two sources disagree on the topology of a pair of GPUs",
    remedy=(
        "Compare with nvidia-smi topo -m. A virtual machine or container often shows another PCI tree "
        "than the real one."
    ),
)
CONTRADICTION = Rule(
    "machine.contradiction",
    "two sources disagree on a fact",
    remedy="Check that all captures are of one machine and taken at the same time.",
)
_DRIVER_CONTRADICTS = "Compare with nvidia-smi -L and lspci -d 10de:. Install the driver again, and reboot."
UNKNOWN_HOST = Rule(
    "machine.unknown_host",
    "recordings without a host fingerprint are read as one host",
    remedy="If they are of several hosts, add --fleet. Record them again: gputopo inspect --record FILE.",
)
TOPOLOGY_UNKNOWN = Rule(
    "topology.unknown",
    "topology of some pairs of GPUs unknown",
    remedy="Add the output of nvidia-smi topo -m of this machine with --from.",
    severities=("info",),
)
TOPOLOGY_HIDDEN = Rule(
    "topology.hidden",
    "topology hidden by a container or virtual machine",
    remedy=(
        "In a container bind-mount /sys, or run gputopo on the host. In a virtual machine measure: "
        "gputopo bandwidth finds the pairs that share a path."
    ),
    severities=("info",),
)
TOPOLOGY_DOUBTFUL = Rule(
    "topology.doubtful",
    "the topology matrix is not plausible",
    remedy=(
        "Do not rely on it: measure the pairs with gputopo bandwidth. Read it outside of containers and "
        "virtual machines where possible."
    ),
)
AFFINITY_CUT = Rule(
    "numa.affinity_cut",
    "CPU affinity shows the CPUs of a job or container, not those near the GPU",
    remedy=(
        "Run nvidia-smi topo -m outside of the job or container, or add the output of lscpu with --from."
    ),
    severities=("info",),
    thresholds=(Threshold("scattered CPUs", MAX_CUT_CPUS, "CPUs"),),
)
UNREAD = Rule(
    "capture.unread",
    "lines of a capture not understood",
    remedy="Look for facts that matter in these lines, and report them with the capture.",
    severities=("info",),
)

INCOMPLETE = Rule(
    "capture.incomplete",
    "a part of a capture is missing",
    remedy="Capture again, and copy all lines: what is missing was not checked.",
)

# `topo -m` also shows the NVLinks of idle GPUs, so a power state does not explain a board without NVLinks.
MIN_BOARD_GPUS = 2


@check(INCOMPLETE)
def gaps(machine: Machine) -> Iterator[Fault]:
    """Report the parts of each capture that are missing."""
    for source, missing in grouped((gap.source, gap) for gap in machine.gaps).items():
        words = "; ".join([gap.text for gap in missing[:MAX_MESSAGES]])
        more = f"; and {len(missing) - MAX_MESSAGES} more" if missing[MAX_MESSAGES:] else ""
        yield INCOMPLETE.fault(
            MACHINE,
            f"{source} is incomplete: {words}{more}",
            {"source": source, "gaps": [msgspec.to_builtins(gap) for gap in missing]},
        )


@check(CONTRADICTION, TOPOLOGY_CONTRADICTION, UNKNOWN_HOST)
def contradictions(machine: Machine) -> Iterator[Fault]:
    """Report the facts on which two sources disagree; the first source is used."""
    for contradiction in machine.contradictions:
        fact, said = contradiction.fact, contradiction.said
        values = "; ".join(f"{what} ({source})" for source, what in said.items())
        subject = _subject_of(machine, fact)
        evidence = {"fact": fact, "said": said}
        if subject.kind == "link" and fact.endswith(("].hop", "].nvlinks")):
            a, b = subject.gpus
            says = f"sources disagree on the topology of GPUs {a} and {b}: {values}; the first is used"
            yield TOPOLOGY_CONTRADICTION.fault(subject, says, evidence)
        elif fact == "host.fingerprint":
            without = [name for name, what in said.items() if what == "none"]
            do = "does" if len(without) == 1 else "do"
            says = f"{_named(list(said))} are read as one host; {_named(without)} {do} not say of which"
            yield UNKNOWN_HOST.fault(MACHINE, says, evidence)
        elif fact == "gpus":
            says = f"the driver reports different numbers of GPUs: {values}; the first is used"
            yield CONTRADICTION.fault(DRIVER, says, evidence, remedy=_DRIVER_CONTRADICTS)
        else:
            says = f"sources disagree on the {fact_in_words(fact)}: {values}; the first is used"
            yield CONTRADICTION.fault(subject, says, evidence)


@check(TOPOLOGY_UNKNOWN)
def unknown_topology(machine: Machine) -> Iterator[Fault]:
    """Report the pairs of which neither hop nor NVLinks are known."""
    links = machine.links_by_pair
    pairs = list(combinations(sorted(gpu.index for gpu in present(machine)), 2))
    unknown = [pair for pair in pairs if class_name(links.get(pair)) == "unknown"]
    if unknown:
        yield TOPOLOGY_UNKNOWN.fault(
            MACHINE,
            f"topology of {len(unknown)} of {len(pairs)} pairs of GPUs unknown",
            {"pairs": [f"{a}-{b}" for a, b in unknown]},
        )


@check(TOPOLOGY_HIDDEN)
def hidden_topology(machine: Machine) -> Iterator[Fault]:
    """Report a container or virtual machine that hides or emulates the PCI tree."""
    gpus = [gpu for gpu in present(machine) if gpu.pci_address is not None]
    if len(gpus) < 2:
        return
    on_bus = {node.address for node in machine.pci}
    unseen = [gpu.pci_address for gpu in gpus if gpu.pci_address not in on_bus]
    container, virtual = machine.host.container, machine.host.virtual_machine
    if container not in (None, "none") and unseen:
        yield TOPOLOGY_HIDDEN.fault(
            MACHINE,
            f"container ({container}) does not show the PCI bus: slots and bridges unknown",
            {"container": container, "not_on_the_bus": unseen},
        )
    elif virtual not in (None, "none") and not any(link.nvlinks for link in machine.links):
        hops = {link.hop for link in machine.links}
        if len(hops) == 1 and hops <= {Hop.PHB, Hop.NODE, Hop.SYS}:
            hop = next(iter(hops))
            yield TOPOLOGY_HIDDEN.fault(
                MACHINE,
                f"virtual machine ({virtual}) with the same path for all pairs "
                f"({hop.value if hop else '?'}): may differ from the real topology",
                {"virtual_machine": virtual},
            )


@check(TOPOLOGY_DOUBTFUL)
def doubtful_topology(machine: Machine) -> Iterator[Fault]:
    """Report classes that the legend of `nvidia-smi topo -m` excludes, and NVLink models without NVLinks."""
    within, across = implausible_pairs(machine)
    nodes = {str(gpu.index): gpu.numa_node for gpu in present(machine)}
    if within:
        yield _doubt("SYS between GPUs of one NUMA node", within, {"numa_nodes": nodes})
    if across:
        yield _doubt("NODE or closer between GPUs of different NUMA nodes", across, {"numa_nodes": nodes})
    for name in _lacks_nvlinks(machine):
        yield TOPOLOGY_DOUBTFUL.fault(
            MACHINE,
            f"no NVLink between any two {name}, a model that has them: hidden by a virtual machine, or down",
            {"model": name},
            remedy="Run nvidia-smi nvlink -s on the host. Measure the pairs with gputopo bandwidth.",
        )


def _lacks_nvlinks(machine: Machine) -> tuple[str, ...]:
    """Return the models that always have NVLinks, if at least two of their GPUs show none to each other.

    Models are skipped if the number of NVLinks of any pair is unknown; GPUs that report link states are
    skipped.
    """
    links = machine.links_by_pair
    groups: dict[str, list[int]] = {}
    for gpu in machine.gpus:
        if gpu.lost or gpu.mig.mode or gpu.nvlinks:
            continue
        expected = expected_of(gpu)
        if gpu.name and expected is not None and expected.nvlinks and not expected.nvlink_by_bridge:
            groups.setdefault(gpu.name, []).append(gpu.index)
    return tuple(
        name
        for name, gpus in groups.items()
        if len(gpus) >= MIN_BOARD_GPUS
        and all(
            (link := links.get(pair)) is not None and link.nvlinks == 0
            for pair in combinations(sorted(gpus), 2)
        )
    )


def _doubt(what: str, pairs: Sequence[tuple[int, int]], evidence: dict[str, Any]) -> Fault:
    return TOPOLOGY_DOUBTFUL.fault(
        MACHINE,
        f"{what} ({pairs_in_words(pairs)}): an artefact of a virtual machine, the firmware or the driver",
        {"pairs": [f"{a}-{b}" for a, b in pairs], **evidence},
    )


@check(AFFINITY_CUT)
def cut_affinities(machine: Machine) -> Iterator[Fault]:
    """Report CPU affinities that are the CPUs of a job or container, not of a NUMA node."""
    if machine.host.logical_cpus is not None and machine.host.logical_cpus <= MAX_CUT_CPUS:
        return
    cpus_of_gpu = {gpu.index: parse_cpus(gpu.cpu_affinity or "") for gpu in machine.gpus}
    cut: dict[int, str | None] = {}
    words = []
    for gpu in present(machine):
        cpus = cpus_of_gpu[gpu.index]
        if cpus and looks_cut(cpus):
            cut[gpu.index] = gpu.cpu_affinity
            words.append(f"{gpu.cpu_affinity} (a few scattered CPUs)")
        elif not cpus and any(cpus_of_gpu.values()) and gpu.numa_node is None and machine.links:
            cut[gpu.index] = None
            words.append("no CPU (none, while other GPUs have CPUs)")
    if cut:
        which = f"GPU{'s' if len(cut) > 1 else ''} {index_ranges(cut)}"
        yield AFFINITY_CUT.fault(
            Subject.of_gpus(cut),
            f"CPU affinity of {which} does not match a NUMA node: {'; '.join(dict.fromkeys(words))}",
            {"cpu_affinity": {str(index): cpus for index, cpus in cut.items()}},
        )


@check(UNREAD)
def unread_lines(machine: Machine) -> Iterator[Fault]:
    """Count the lines of each capture that were not understood."""
    by_source = grouped((line.source, {"line": line.line, "text": line.text}) for line in machine.unread)
    counts: dict[str, int] = {}  # more than are listed, where they are many
    for counted in machine.lines:
        counts[counted.source] = counts.get(counted.source, 0) + counted.not_understood
    for source, lines in by_source.items():
        count = max(counts.get(source, 0), len(lines))
        numbers = ", ".join(str(entry["line"]) for entry in lines[:5]) + (", ..." if lines[5:] else "")
        yield UNREAD.fault(
            MACHINE,
            f"{count} line{'s' if count > 1 else ''} not understood in {source}: line {numbers}",
            {"source": source, "count": count, "lines": lines},
        )


def _named(files: Sequence[str]) -> str:
    return listed(files, "and") if len(files) <= MAX_MESSAGES else f"{len(files)} recordings"


def _subject_of(machine: Machine, fact: str) -> Subject:
    at = FactPath.parse(fact)
    if at.group == "links" and len(set(at.indices)) == 2:
        return Subject.of_link(*at.indices)
    if at.group == "gpus" and at.indices and at.indices[0] < len(machine.gpus):
        return Subject.of_gpus([machine.gpus[at.indices[0]].index])
    return DRIVER if at.group == "driver" else MACHINE


def fact_in_words(path: str) -> str:
    """Return an address in words: `PCI address of GPU 1`, `driver CUDA version`."""
    at = FactPath.parse(path)
    if at.fact and at.group == "gpus" and at.indices:
        return f"{path_in_words(Gpu, at.fact)} of GPU {at.key}"
    if at.fact and at.group == "links" and at.indices:
        return f"{path_in_words(Link, at.fact)} of GPUs {' and '.join(map(str, at.indices))}"
    return path_in_words(Machine, path)
