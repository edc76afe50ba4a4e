import msgspec

from gputopo.findings import Finding
from gputopo.findings.difference import Change, Difference, FindingChanges
from gputopo.report.document import document_text
from gputopo.report.machine.difference import changes_in_words, difference_document
from gputopo.report.markdown import document_markdown
from gputopo.values.subject import Subject


def change(says: str, fact: str = "driver.version") -> Change:
    return Change(fact=fact, was=1, is_=2, says=says)


def power_limit(gpu: int) -> Change:
    fact = f"gpus[{gpu}].power_w.limit"
    return Change(fact=fact, was=250.0, is_=300.0, says=f"GPU {gpu}: power limit 250 W -> 300 W")


def difference(*changes: Change, compared: int = 3, one_sided: int = 0) -> Difference:
    return Difference(
        old_source="live", new_source="live", changes=changes, compared=compared, one_sided=one_sided
    )


def shown(found: Difference) -> str:
    return document_text(difference_document(found), 60)


def test_each_change_has_a_line_and_what_gpus_share_is_reported_once() -> None:
    changes = (
        *map(power_limit, (0, 1, 3)),
        change("driver: version 1 -> 2"),
        change("GPU 5 (T4) is missing", "gpus[5]"),
        change("GPU 6 (T4) is missing", "gpus[6]"),
    )
    assert changes_in_words(changes) == [
        "GPUs 0-1,3: power limit 250 W -> 300 W",
        "driver: version 1 -> 2",
        "GPU 5 (T4) is missing",
        "GPU 6 (T4) is missing",
    ]
    assert "\n  - GPUs 0-1,3: power limit 250 W -> 300 W\n  - driver" in shown(difference(*changes))


def test_nothing_changed_is_reported() -> None:
    assert shown(difference()) == ("Compared with live (left of ->)\n  No difference.\n  3 facts compared.\n")


def test_two_sources_that_show_nothing_in_common_are_not_called_equal() -> None:
    text = shown(difference(compared=0, one_sided=9))
    assert "Nothing could be compared." in text
    assert "No difference" not in text
    assert "9 facts that only one" in " ".join(text.split())


def test_a_long_change_is_folded() -> None:
    text = shown(difference(change("network card " + "x" * 20 + " is " + "y " * 40)))
    assert max(map(len, text.splitlines())) <= 60


def test_markdown_has_a_list_or_states_that_nothing_changed() -> None:
    assert "\n- driver: a\\_b\n" in document_markdown(difference_document(difference(change("driver: a_b"))))
    assert "\nNo difference.\n" in document_markdown(difference_document(difference()))


def test_findings_that_came_went_and_stayed_are_shown() -> None:
    def finding(id: str) -> Finding:
        return Finding(id=id, severity="error", subject=Subject.of_gpus([1]), says=f"says of {id}")

    changes = FindingChanges(came=(finding("a.hot"),), went=(finding("b.slow"),))
    found = msgspec.structs.replace(difference(), findings=changes)
    text = shown(found)
    assert text.index("No fact that lasts differs.") < text.index("Findings only here") < text.index("a.hot")
    assert text.index("Findings only there") < text.index("b.slow")
    assert "stayed" not in text
    markdown = document_markdown(difference_document(found))
    assert "### Findings only here\n\n- **error** `a.hot` (gpu:1)\n  - says of a.hot\n" in markdown
