from gputopo.report import (
    document_lines,
    document_markdown,
    document_text,
    inspection_document,
    watched_document,
)
from gputopo.values.finding import Finding, Inspection
from gputopo.values.machine import Machine
from gputopo.values.subject import Subject


def shown(machine: Machine, *findings: Finding, width: int = 80) -> str:
    return document_text(inspection_document(Inspection(machine=machine, findings=findings), "all"), width)


LOST = Finding(
    id="gpu.lost",
    severity="error",
    subject=Subject.parse("gpu:3"),
    says="GPU 3 was counted and then did not answer " * 4,
    remedy="check the seat, the riser, the power cables and the heat of this card " * 3,
)


def narrow(subject: str, says: str) -> Finding:
    return Finding(
        id="pcie.slot", severity="warning", subject=Subject.parse(subject), says=says, remedy="move it"
    )


def test_findings_of_one_kind_share_a_block_and_its_remedy() -> None:
    found = (narrow("gpu:1", "GPU 1: one lane"), LOST, narrow("gpu:2", "GPU 2: two lanes"))
    text = shown(Machine(source="live"), *found)
    assert "warning  GPUs 1-2  pcie.slot\n" in text
    assert text.count("To do: move it") == 1
    assert text.index("GPU 1: one lane") < text.index("GPU 2: two lanes") < text.index("gpu.lost")


def test_what_was_seen_while_watching_states_what_could_not_be_seen() -> None:
    assert document_text(watched_document((), None), 80) == "Seen while watching\n  None.\n"
    assert "Xid errors: NOT_SUPPORTED" in document_text(watched_document((LOST,), "NOT_SUPPORTED"), 80)


def test_the_severity_has_its_colour() -> None:
    lines = document_lines(watched_document((LOST,), None), 80)
    assert ("error    ", "bold red") in [span for line in lines for span in line]


def test_no_finding_is_no_pass_for_what_was_not_read() -> None:
    assert "\nFindings\n  None.\n" in shown(Machine(source="live"))
    machine = Machine(source="nvidia-smi topo", missing={"gpus[*].clocks_mhz": "not reported"})
    words = "No problems found in the data available. Missing data was not checked."
    assert f"\nFindings\n  {words}\n" in shown(machine)
    assert words in document_markdown(inspection_document(Inspection(machine=machine), "all"))
