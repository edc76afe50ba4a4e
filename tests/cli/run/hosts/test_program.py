"""`gputopo run -- PROGRAM` on two hosts: launchers on this host's loopback, each on a machine of the kit."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO, Any

import pytest

from tests.kit import commands
from tests.kit.forks import Program
from tests.kit.ports import free_port

SHOWS = "import json, os; print(json.dumps(dict(os.environ)))"
REPORTS = f"""
{SHOWS}
import time
from gputopo.launch.throughput import Steps
rank = int(os.environ["RANK"])
with Steps(examples=16, device=1) as steps:
    for _ in range(41):
        time.sleep(0.01)
        steps.done(busy_s=0.005 + 0.001 * rank)
"""
NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Hosts:
    """Launchers of one program by rank, each with a home, and so claims, of its own."""

    def __init__(
        self, home: Path, left: ExitStack, *options: str, program: tuple[str, ...], config: str = ""
    ) -> None:
        """`config`: TF_CONFIG, with RANK for the index; without, the hosts are given by options."""
        self.home = home
        self.launchers: list[tuple[Program, IO[str], IO[str]]] = []  # with stdout and stderr
        hosts = f"localhost:{free_port()},localhost"
        for rank in range(2):
            named = () if config else ("--hosts", hosts, "--node-rank", str(rank))
            environ = {"GPUTOPO_HOME": str(home / str(rank))}
            if config:
                environ["TF_CONFIG"] = config.replace('"RANK"', str(rank))
            reading, writing = os.pipe()
            words = ("-m", "tests.kit.command", "four", "--", "run", *options, *named, "--", *program)
            launcher, err = left.enter_context(commands.started(*words, out=writing, **environ))
            os.close(writing)
            self.launchers.append((launcher, left.enter_context(os.fdopen(reading)), err))

    def ended(self) -> list[tuple[int, str, str]]:
        """Return exit code, stdout and stderr of each."""
        return [(program.wait(120), out.read(), err.read()) for program, out, err in self.launchers]

    def result(self, rank: int = 0) -> dict[str, Any]:
        """Return the result of a host."""
        (file,) = (self.home / str(rank) / "runs").glob("*/result.json")
        found: dict[str, Any] = json.loads(file.read_text())
        return found


Started = Callable[..., Hosts]


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    """Starts them; at the end none is left."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    with ExitStack() as left:
        yield partial(Hosts, tmp_path, left)


def test_each_host_runs_the_program_on_its_share_knows_the_others_and_records_its_own_steps(
    hosts: Started,
) -> None:
    run = hosts("--num-gpus", "6", program=(sys.executable, "-c", REPORTS))
    ended = run.ended()
    assert [code for code, _, _ in ended] == [0, 0], ended
    environs = [json.loads(out) for _, out, _ in ended]
    assert [len(one["CUDA_VISIBLE_DEVICES"].split(",")) for one in environs] == [3, 3]
    assert all(one["CUDA_VISIBLE_DEVICES"].startswith("GPU-") for one in environs)
    configs = [json.loads(one["TF_CONFIG"]) for one in environs]
    assert [one["task"] for one in configs] == [{"type": "worker", "index": index} for index in (0, 1)]
    assert configs[0]["cluster"] == configs[1]["cluster"]
    assert len(set(configs[0]["cluster"]["worker"])) == 2
    assert [(one["RANK"], one["WORLD_SIZE"], one["MASTER_ADDR"]) for one in environs] == [
        ("0", "2", "localhost"),
        ("1", "2", "localhost"),
    ]
    assert environs[0]["MASTER_PORT"] == environs[1]["MASTER_PORT"]
    assert [one["NCCL_SOCKET_IFNAME"] for one in environs] == ["=lo", "=lo"]
    for rank in (0, 1):
        result = run.result(rank)
        assert [row["device"]["gpu"] for row in result["devices"]] == _gpus(ended[rank][2], rank)
        assert result["images"] == 40 * 16
        busy = [row["compute_ms"] for row in result["devices"] if row["compute_ms"]]
        assert busy == [pytest.approx(5.0 + rank)]


def _gpus(printed: str, rank: int) -> list[int]:
    """Return the GPUs of a rank, of those that its launcher names."""
    line = next(line for line in printed.splitlines() if " runs on " in line)
    last = line.rstrip(".").split("; ")[0 if rank == 0 else -1]
    return [int(gpu) for gpu in last.partition(" GPU ")[2].split(", ")]


def test_one_host_that_is_enough_runs_it_alone(hosts: Started) -> None:
    run = hosts("--num-gpus", "2", program=(sys.executable, "-c", SHOWS))
    (code, out, _), (unused, none, said) = run.ended()
    assert (code, unused, none) == (0, 0, "")
    assert "this host is not needed" in said
    assert "TF_CONFIG" not in json.loads(out)


def test_each_host_ends_with_the_code_of_its_program_when_that_ends(hosts: Started, tmp_path: Path) -> None:
    waits = "until test -e ended; do sleep 0.01; done; exit 5"
    script = f"cd {tmp_path}; if test $RANK = 1; then exit 7; fi; {waits}"
    run = hosts("--num-gpus", "8", program=("sh", "-c", script))
    first = run.launchers[1][0].wait(120)
    (tmp_path / "ended").touch()
    ended = run.ended()
    assert (first, [code for code, _, _ in ended]) == (7, [5, 7]), ended
    for rank, code in ((0, 5), (1, 7)):
        assert f"gputopo: sh ended with exit code {code}\n" in ended[rank][2]
        assert (run.result(rank)["status"], run.result(rank)["exit_code"]) == ("failed", code)
