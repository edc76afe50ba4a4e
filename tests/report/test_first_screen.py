"""The first screen of an inspection: the answer, the findings worst first, a line a GPU."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gputopo import findings
from gputopo.report import document_lines, document_markdown, document_text, inspection_document
from gputopo.values.finding import Finding, Inspection, Severity
from gputopo.values.machine import Driver, Gpu, Hop, Link, Machine, Pcie
from gputopo.values.subject import Subject
from tests.findings.boxes import Change, all_of, every_gpu, find, gpu, sound
from tests.kit.faults import broken
from tests.kit.machines import machine_of, read
from tests.report.shown import answer_of, assert_golden, text_of

TIMES = "\N{MULTIPLICATION SIGN}"


def screen(machine: Machine, width: int = 80) -> list[str]:
    inspection = Inspection(machine=machine, findings=findings.find(machine))
    document = inspection_document(inspection, checks=findings.checks_made(machine))
    return text_of(document_lines(document, width, on_screen=True)).splitlines()


def four(*changes: Change) -> Machine:
    """Four sound GPUs of one model, changed."""
    return all_of(*changes)(replace(sound(), source="live"))


REMAP_FAILED = gpu(1, remapped_rows={"failure": True})
RESET = gpu(2, recovery_action="reset")
LIMITED = gpu(3, power_w={"limit": 100.0})


def finding(severity: Severity, says: str, id: str = "a.b", on: str = "gpu:0", **more: Any) -> Finding:
    return Finding(id=id, severity=severity, says=says, subject=Subject.parse(on), **more)


def judged(*changes: Change) -> tuple[Machine, Sequence[Finding]]:
    machine = four(*changes)
    return machine, find(machine)


CARDS = Machine(source="x", gpus=tuple(Gpu(index=n, name="NVIDIA T4", pstate="P0") for n in range(3)))
NO_DEVICE = Machine(source="x", driver=Driver(status="no_device"))
ANSWERS: dict[str, tuple[Machine, Sequence[Finding]]] = {
    "sound": judged(),
    "one error": judged(REMAP_FAILED),
    "a warning": judged(LIMITED),
    "three findings": judged(REMAP_FAILED, RESET, LIMITED),
    "links only": (Machine(source="lspci", gpus=(Gpu(index=0, pcie=Pcie(width_now=16)),)), ()),
    "no topology": (replace(four(), links=()), ()),
    "a fault": (CARDS, [finding("error", "GPU 0 (T4, 0000:01:00.0): bad: x")]),
    "an aside": (
        CARDS,
        [finding("warning", "copies (PIX: GPUs 0-1) reach 19% of the rate (x (y)): 5", on="machine")],
    ),
    "in use": (CARDS, [finding("warning", "x", "gpu.busy", "gpus:0-1")]),
    "the machine": (CARDS, [finding("warning", "P2P is slow, and hangs", on="machine")]),
    "an info": (CARDS, [finding("info", "x")]),
    "a GPU that is not there": (CARDS, [finding("warning", "slow", on="gpus:1-2,7")]),
    "no device": (NO_DEVICE, ()),
    "no driver": (Machine(source="x"), [finding("error", "the driver is not loaded", on="driver")]),
}


def test_the_answer_is_a_sentence_with_the_number_of_findings() -> None:
    lines = [
        f"{name}: {answer_of(machine, *found, checks=findings.checks_made(machine))}"
        for name, (machine, found) in ANSWERS.items()
    ]
    assert_golden("answers of inspections", "\n".join([*lines, ""]))


MANY = [
    *(
        finding("error", f"GPU {n} (T4, 0000:0{n}:00.0): " + "bad " * 60, f"e.{n}", remedy="r " * 99)
        for n in range(3)
    ),
    *(finding("warning", "odd " * 30, f"w.{n}", remedy="do it") for n in range(9)),
    *(finding("info", "known " * 30, f"i.{n}", remedy="none") for n in range(7)),
]


def shown_findings(found: Sequence[Finding], gpus: int, columns: int = 80) -> list[str]:
    """The lines of a terminal from the first finding on, above the table of so many GPUs."""
    cards = Machine(source="x", gpus=tuple(Gpu(index=n, name="NVIDIA T4", pstate="P0") for n in range(gpus)))
    document = inspection_document(Inspection(machine=cards, findings=tuple(found)))
    lines = text_of(document_lines(document, columns, on_screen=True)).splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith(("error ", "warning ", "info ")))
    return lines[first : lines.index("", first)]


def ids(lines: Sequence[str]) -> list[str]:
    return [line.split()[1] for line in lines if line.startswith(("error ", "warning ", "info "))]


def test_a_terminal_shows_all_errors_and_warnings_and_infos_and_remedies_as_far_as_they_fit() -> None:
    lines = shown_findings(MANY, gpus=6)
    assert ids(lines) == [one.id for one in MANY[:12]]
    assert "e.0  GPU 0: bad" in lines[0]
    assert not any("To do" in line for line in lines)
    assert lines[-1] == "7 infos (gputopo inspect --all)"
    few = shown_findings([MANY[3], *MANY[12:]], gpus=3)
    assert ids(few) == ["w.0", *(f"i.{n}" for n in range(5))]
    assert sum("To do: do it" in line for line in few) == 1
    assert few[-1] == "2 more infos (gputopo inspect --all)"


# 200 columns hold a warning of 120 letters.
@pytest.mark.parametrize(("columns", "count"), [(60, 12), (200, 3)])
def test_a_sentence_is_cut_at_the_width_of_the_terminal_only(columns: int, count: int) -> None:
    cut = [line for line in shown_findings(MANY, 6, columns) if line.endswith("…")]
    assert len(cut) == count
    assert {len(line) for line in cut} <= set(range(columns - 8, columns + 1))


def test_a_pipe_and_a_bug_report_have_whole_sentences_and_all_remedies() -> None:
    document = inspection_document(Inspection(machine=CARDS, findings=tuple(MANY)))
    for text in (document_text(document, 80), document_markdown(document)):
        assert "…" not in text
        assert text.count("bad") == 3 * 60 + document.answer.count("bad")
        assert text.count("known") == 5 * 30
        assert text.count("To do: do it") == 9
        assert "\n2 more infos" in text
        assert "- **info** `2 more" not in text
    assert max(map(len, document_text(document, 80).splitlines())) <= 80


@pytest.mark.parametrize("fault", ["", "lost"])
def test_eight_gpus_fit_a_terminal_of_24_lines_healthy_and_sick(fault: str, tmp_path: Path) -> None:
    machine = read(broken("dgx1", f"{fault}@2"), tmp_path) if fault else machine_of("dgx1")
    lines, narrow = screen(machine), screen(machine, 60)
    assert (max(map(len, lines)) <= 80, max(map(len, narrow)) <= 60) == (True, True)
    assert len(lines) <= 24
    for shown in (lines, narrow):
        assert sum(re.match(r"  [0-7] ", line) is not None for line in shown) == 8
        assert any("Finding" in line for line in shown) == bool(fault)


def test_on_a_narrow_screen_the_least_important_columns_go() -> None:
    wide, narrow = (
        next(line for line in screen(machine_of("dgx1"), w) if "Memory MHz" in line) for w in (90, 50)
    )
    assert {"NUMA", "Temp"} <= set(wide.split())
    assert not {"NUMA", "Temp"} & set(narrow.split())
    assert {"PCIe", "Power"} <= set(narrow.split())


def test_the_answer_has_the_colour_of_the_worst_finding_and_only_that() -> None:
    machine = four(REMAP_FAILED)
    inspection = Inspection(machine=machine, findings=find(machine))
    assert document_lines(inspection_document(inspection), 80)[0][-1][1] == "bold red"
    calm = Inspection(machine=four(), findings=())
    assert document_lines(inspection_document(calm), 80)[0][-1][1] == ""


def of_gpus(machine: Machine, *indices: int) -> str:
    inspection = Inspection(machine=machine, findings=find(machine))
    chosen = replace(machine, gpus=tuple(gpu for gpu in machine.gpus if gpu.index in indices))
    checks = findings.checks_made(chosen)
    return document_text(inspection_document(inspection, indices, checks=checks), 200)


def test_one_gpu_has_its_facts_its_findings_and_no_other_gpus() -> None:
    text = of_gpus(four(REMAP_FAILED, LIMITED), 3)
    assert text.startswith(
        f"1 {TIMES} Tesla V100-SXM2-16GB: GPU 3 needs attention (power limit 100 W). 1 warning.\n"
    )
    assert "power.limit_below_default" in text
    assert "remap_failed" not in text
    assert "limit 100 W" in text


def test_of_chosen_gpus_only_these_are_counted_whatever_a_finding_is_about() -> None:
    all_limited = four(every_gpu(power_w={"limit": 100.0}))
    assert "V100-SXM2-16GB: GPU 3 needs attention (power limit 100 W). 1 warning." in of_gpus(all_limited, 3)
    assert f"2 {TIMES} Tesla V100-SXM2-16GB: all 2 need attention" in of_gpus(all_limited, 0, 3)
    some = of_gpus(four(REMAP_FAILED, LIMITED), 0, 1)
    assert some.startswith(f"2 {TIMES} Tesla V100-SXM2-16GB: 1 fine, GPU 1 must be replaced")
    assert ("\nGPU 0\n" in some, "\nGPU 1\n" in some, "\nGPU 3\n" in some) == (True, True, False)


def links(count: int, near: list[tuple[int, int]], hop: Hop = Hop.PIX) -> Machine:
    return Machine(
        source="x",
        gpus=tuple(Gpu(index=n) for n in range(count)),
        links=tuple(
            Link(a=a, b=b, hop=hop if (a, b) in near else Hop.SYS)
            for a in range(count)
            for b in range(a + 1, count)
        ),
    )


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (links(1, []), ""),
        (links(4, []), "SYS between all pairs of GPUs"),
        (links(4, [(0, 1)]), "PIX GPUs 0 and 1; SYS the other pairs"),
        (links(5, [(0, 1), (0, 2), (1, 2), (3, 4)]), "PIX within GPUs 0-2, 3-4; SYS the other pairs"),
        (links(9, [(n, n + 1) for n in range(7)]), "7 pairs PIX, 29 pairs SYS"),  # and no matrix
    ],
)
def test_the_topology_in_words(machine: Machine, words: str) -> None:
    text = document_text(inspection_document(Inspection(machine=machine)), 400)
    found = re.search(r"^Topology: (.*?)\.$", text, re.MULTILINE)
    assert (found[1] if found else "") == words
