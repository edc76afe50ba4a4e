"""`gputopo explain` and `gputopo models`."""

import json

import pytest

from gputopo import pages
from gputopo.cli import run_command
from gputopo.findings import rules
from gputopo.workload import workload_names


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run_command(["explain", *words]) == 0
    return capsys.readouterr().out


def test_without_a_topic_all_pages_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    listed = [line.split()[0] for line in shown(capsys).split("\n\n")[0].splitlines()]
    assert listed == list(pages.PAGES)


def test_a_finding_is_explained_with_its_remedy_and_thresholds(capsys: pytest.CaptureFixture[str]) -> None:
    rule = next(rule for rule in rules() if rule.thresholds)
    found = shown(capsys, rule.id)
    assert found.startswith(f"## `{rule.id}`\n")
    assert rule.remedy in found
    assert all(threshold.origin in found for threshold in rule.thresholds)


@pytest.mark.parametrize(
    ("words", "shows"),
    [
        (["79"], "| Xid 79 | error | GPU has fallen off the bus |"),
        (["Xid 79"], "| Xid 79 |"),
        (["xid79"], "| Xid 79 |"),
        (["154"], "| Xid 154 (drain p2p) |"),
        (["20034"], "| SXid 20034 |"),
        (["SXid 20034"], "| SXid 20034 |"),
        (["--prefer-pix"], "| `--prefer-pix` |"),
        (["model"], "`--model`"),
        (["--", "--prefer-pix"], "| `--prefer-pix` |"),
        (["--ps=cpu"], "| `--ps` |"),
        (["-i"], "| `--gpu`, `-i` |"),
    ],
)
def test_an_error_code_and_an_option_as_it_is_typed_are_explained(
    words: list[str], shows: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shows in shown(capsys, *words)


def test_the_models_are_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["models"]) == 0
    assert capsys.readouterr().out == pages.read("models")


def test_the_models_are_also_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["models", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["models"]
    found = {one["name"]: one for one in listed}
    assert tuple(found) == workload_names()
    alexnet = found["alexnet"]
    assert (alexnet["parameters"], alexnet["batch"]) == (61_842_345, 512)
    assert 4 * alexnet["parameters"] == alexnet["parameter_bytes"]
    assert alexnet["source"] == "tf_cnn_benchmarks"
    assert all(one["source"] for one in listed)


def test_a_search_prints_the_lines_of_all_pages_with_the_name_of_the_page(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = shown(capsys, "--search", "Prefer-PIX").splitlines()
    assert {line.partition(": ")[0] for line in lines} >= {"options", "plan"}
    assert all("prefer-pix" in line.casefold() for line in lines)
    assert run_command(["explain", "--search", "no such word"]) == 2
    assert run_command(["explain", "plan", "--search", "pix"]) == 2


@pytest.mark.parametrize("topic", ["Prefer-Pix", "prefer_pix", "PCIE.slot-narrow", "XID 79", "Xid79"])
def test_case_dashes_and_underscores_of_a_topic_do_not_matter(
    topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(capsys, *topic.split())
