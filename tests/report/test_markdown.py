import re

from gputopo.report import Document, document_markdown, inspection_document
from gputopo.report.document import Drawing, Section
from gputopo.values.finding import Finding, Inspection
from gputopo.values.machine import Machine
from gputopo.values.subject import Subject
from tests.kit.machines import machine_of
from tests.report.shown import section_text


def shown(machine: Machine, *findings: Finding) -> str:
    return document_markdown(inspection_document(Inspection(machine=machine, findings=findings), "all"))


def code_blocks(text: str) -> list[tuple[str, str]]:
    return re.findall(r"^(`{3,})text\n(.*?)^\1$", text, re.MULTILINE | re.DOTALL)


def test_the_matrix_stands_in_a_code_block_as_it_is() -> None:
    document = inspection_document(Inspection(machine=machine_of("dgx1")), "topology")
    blocks = [block[1] for block in code_blocks(document_markdown(document))]
    matrix, _, peers = section_text(document, "Topology", 120).rpartition("\n\n")
    assert f"{matrix}\n" in blocks
    assert peers.startswith("Peer access")
    assert any("root complex" in block for block in blocks)


def test_findings_are_a_list_with_id_severity_and_remedy() -> None:
    same = {"id": "pcie.slot", "severity": "warning", "remedy": "Move it."}
    text = shown(
        Machine(source="x"),
        Finding(subject=Subject.parse("gpu:1"), says="one lane", **same),  # type: ignore[arg-type]
        Finding(subject=Subject.parse("gpu:2"), says="two lanes", **same),  # type: ignore[arg-type]
    )
    above = "- **warning** `pcie.slot` (GPUs 1-2)\n  - one lane\n  - two lanes\n"
    assert f"{above}  - To do: Move it. Check with: sudo lspci -vvv -d 10de:\n" in text


def test_words_from_outside_are_no_markup() -> None:
    words = "a|b *c* `d` <img> [x](y) @ann 4 @ 2.2 GHz\n# no title"
    assert document_markdown(Document("", "", (Section("", (words,)),))) == (
        "a\\|b \\*c\\* \\`d\\` \\<img\\> \\[x\\](y) &#64;ann 4 @ 2.2 GHz \\# no title\n"
    )


def test_a_fence_in_a_name_does_not_end_the_code_block() -> None:
    drawing = Drawing(lambda _: [(("```\n# title", ""),)])
    (fence, block), *_ = code_blocks(document_markdown(Document("", "", (Section("", (drawing,)),))))
    assert len(fence) == 4
    assert "```?# title" in block


def test_identities_are_only_in_it_if_they_are_in_the_machine() -> None:
    assert "GPU-0000" not in shown(machine_of("dgx1"))
