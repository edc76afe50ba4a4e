"""What is in doubt about the machine as it was read: contradictions, lines not understood, what is hidden."""

import re
from collections.abc import Iterator
from itertools import combinations
from typing import Any

from gputopo.findings.fault import present
from gputopo.findings.finding import Finding
from gputopo.topology.hops import class_name, links_by_pair
from gputopo.values.fields import path_in_words
from gputopo.values.machine import Hop, Machine


def contradictions(machine: Machine) -> Iterator[Finding]:
    """Give what two sources tell differently; the first stands."""
    for contradiction in machine.contradictions:
        said = "; ".join(f"{source} says {what}" for source, what in contradiction.said.items())
        link = re.fullmatch(r"links\[(\d+)-(\d+)\]\.(?:hop|nvlinks)", contradiction.fact)
        if link:
            a, b = link.groups()
            yield Finding(
                id="topology.contradiction",
                severity="warning",
                subject=f"link:{a}-{b}",
                says=f"GPUs {a} and {b} are placed differently: {said}; the first is used",
                evidence={"fact": contradiction.fact, "said": contradiction.said},
                remedy="compare with nvidia-smi topo -m; a virtual machine or container often shows another "
                "PCI tree than the real one",
            )
        else:
            what = _in_words(machine, contradiction.fact)
            yield Finding(
                id="machine.contradiction",
                severity="warning",
                subject=_subject_of(machine, contradiction.fact),
                says=f"{what} is told differently: {said}; the first is used",
                evidence={"fact": contradiction.fact, "said": contradiction.said},
                remedy="see that all captures are of one machine and of one moment",
            )


def _subject_of(machine: Machine, fact: str) -> str:
    if link := re.match(r"links\[(\d+-\d+)\]", fact):
        return f"link:{link[1]}"
    found = re.match(r"gpus\[(\d+)\]", fact)
    if found and int(found[1]) < len(machine.gpus):
        return f"gpu:{machine.gpus[int(found[1])].index}"
    return "driver" if fact.startswith("driver.") else "machine"


def _in_words(machine: Machine, fact: str) -> str:
    """Give `the PCI address of GPU 1` for a fact's path; one of another kind keeps its own words."""
    device = re.fullmatch(r"(gpus|links)\[(\d+)(?:-(\d+))?\]\.(.+)", fact)
    if device is None:
        return path_in_words(fact)
    room, first, second, path = device.groups()
    if room == "links":
        return f"the {path_in_words(path)} of GPUs {first} and {second}"
    subject = _subject_of(machine, fact).removeprefix("gpu:")
    return f"the {path_in_words(path)} of GPU {subject}" if subject.isdecimal() else path_in_words(fact)


def unknown_topology(machine: Machine) -> Iterator[Finding]:
    """Tell of which pairs nothing is known."""
    links = links_by_pair(machine)
    pairs = list(combinations(sorted(gpu.index for gpu in machine.gpus if not gpu.lost), 2))
    unknown = [pair for pair in pairs if class_name(links.get(pair)) == "unknown"]
    if unknown:
        yield Finding(
            id="topology.unknown",
            severity="info",
            subject="machine",
            says=f"how far apart {len(unknown)} of {len(pairs)} pairs of GPUs are is not known",
            evidence={"pairs": [f"{a}-{b}" for a, b in unknown]},
            remedy="add the text of nvidia-smi topo -m of this machine with --from",
        )


def unread_lines(machine: Machine) -> Iterator[Finding]:
    """Count the lines of each capture that were not understood."""
    by_source: dict[str, list[dict[str, Any]]] = {}
    for unread in machine.unread:
        by_source.setdefault(unread.source, []).append({"line": unread.line, "text": unread.text})
    for source, lines in by_source.items():
        numbers = ", ".join(str(entry["line"]) for entry in lines[:5]) + (", ..." if lines[5:] else "")
        plural = "s were" if len(lines) > 1 else " was"
        yield Finding(
            id="capture.unread",
            severity="info",
            subject="machine",
            says=f"{len(lines)} line{plural} not understood in {source}: line {numbers}",
            evidence={"source": source, "lines": lines},
            remedy="see whether these lines hold a fact that counts, and report it with the capture",
        )


def hidden_topology(machine: Machine) -> Iterator[Finding]:
    """Tell where a container or a virtual machine hides how the GPUs are connected, or invents it."""
    gpus = [gpu for gpu in present(machine) if gpu.pci_address is not None]
    if len(gpus) < 2:
        return
    on_bus = {node.address for node in machine.pci}
    unseen = [gpu.pci_address for gpu in gpus if gpu.pci_address not in on_bus]
    container, virtual = machine.host.container, machine.host.virtual_machine
    if container not in (None, "none") and unseen:
        yield Finding(
            id="topology.hidden",
            severity="info",
            subject="machine",
            says=f"this container ({container}) does not show the PCI bus: slots and bridges are unknown",
            evidence={"container": container, "not_on_the_bus": unseen},
            remedy="run gputopo inspect on the host itself, or mount /sys into the container",
        )
    elif virtual not in (None, "none") and not any(link.nvlinks for link in machine.links):
        hops = {link.hop for link in machine.links}
        if len(hops) == 1 and hops <= {Hop.PHB, Hop.NODE, Hop.SYS}:
            hop = next(iter(hops))
            yield Finding(
                id="topology.hidden",
                severity="info",
                subject="machine",
                says=f"in this virtual machine ({virtual}) all pairs look alike "
                f"({hop.value if hop else '?'}): it may not show how the GPUs are really connected",
                evidence={"virtual_machine": virtual},
                remedy="measure it: gputopo bandwidth finds the pairs that share a way",
            )
