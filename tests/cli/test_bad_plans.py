"""What `plan` cannot be asked, or cannot be given: exit 2, one line what, one line what to do."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Call

CARD = {"name": "GeForce GTX 1070"}


def capture(tmp_path: Path, *samples: dict[str, Any], links: bool = True, name: str = "machine.json") -> Path:
    """Write a machine of two GPUs with these measured copies."""
    machine: dict[str, Any] = {"schema": "gputopo.machine/1", "source": "mine"}
    machine["gpus"] = [{"index": index, **CARD} for index in range(2)]
    machine["links"] = [{"a": 0, "b": 1, "hop": "PIX"}] if links else []
    if samples:
        machine["bandwidth"] = {"schema": "gputopo.bandwidth/1", "source": "x", "samples": samples}
    file = tmp_path / name
    file.write_text(json.dumps(machine), encoding="utf-8")
    return file


def copy(kind: str, gb_per_s: float, **fields: object) -> dict[str, Any]:
    ends = {"source": "gpu:0", "destination": "gpu:1"}
    if kind == "h2d":
        ends = {"source": "host", "destination": "gpu:0"}
    return {"kind": kind, **ends, "median_gb_per_s": gb_per_s, "bytes": 10**8, **fields}


def refused(call: Call, *arguments: object) -> tuple[str, str]:
    """Return the two lines of a refusal."""
    done = call("plan", *arguments)
    assert (done.code, done.out) == (2, ""), done
    what, hint = done.err.splitlines()
    return what.removeprefix("gputopo: "), hint.strip()


def test_of_a_capture_without_links_they_are_assumed_and_the_plan_says_what_shows_them(
    call: Call, tmp_path: Path
) -> None:
    found = call("plan", "--from", capture(tmp_path, links=False), "--model", "alexnet")
    assert found.code == 0
    assert "PCIe hops between GPU" in found.out
    assert "nvidia-smi topo -m" in found.out


@pytest.mark.parametrize(
    ("samples", "what"),
    [
        ([copy("p2p_direct", 90.0)], "90.0 GB/s gpu:0 to gpu:1 (direct), at most 15.8"),
        ([copy("h2d", 90.0)], "90.0 GB/s host to gpu:0"),
        ([copy("p2p_direct", 12.0), copy("bidirectional", 40.0)], "40.0 GB/s"),
    ],
)
def test_bandwidth_that_contradicts_physics_or_itself_is_refused(
    call: Call, tmp_path: Path, samples: list[dict[str, Any]], what: str
) -> None:
    file = capture(tmp_path, *samples)
    found = refused(call, "--from", file, "--model", "alexnet")
    assert found[0].startswith("the measured bandwidth is impossible or contradicts itself: ")
    assert what in found[0]
    assert "measure again" in found[1]


def test_two_captures_that_contradict_one_another_are_refused(call: Call, tmp_path: Path) -> None:
    fast = capture(tmp_path, copy("h2d", 12.0), name="fast.json")
    slow = capture(tmp_path, copy("h2d", 3.0), name="slow.json")
    near = capture(tmp_path, copy("h2d", 11.5), name="near.json")
    what, _ = refused(call, "--from", fast, "--from", slow, "--model", "alexnet")
    assert "measured with 3.00 and with 12.0 GB/s" in what
    assert call("plan", "--from", fast, "--from", near, "--model", "alexnet").code == 0
