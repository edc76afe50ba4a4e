"""Stand-ins for iperf3, ib_write_bw and ib_write_lat: they meet over TCP, print results, and misbehave.

Their output has the formats of the real ones (`tests.kit.dialects.network`).
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Literal

import pytest

from tests.kit.dialects.network import Iperf3, Perftest, iperf3_json, perftest

PROGRAMS = ("iperf3", "ib_write_bw", "ib_write_lat")
TAKEN = "unable to start listener for connections: Address already in use"
Fault = Literal["hang", "exit", "garbage", "flood", "taken", "slow", "killed", "no version", "nothing"]

_SCRIPT = """\
#!{python} -IS
import os, signal, socket, sys, time
here, name, words = {here!r}, {name!r}, sys.argv[1:]
faults = open(f"{{here}}/faults").read().split(",")
if words == ["--version"]:
    print("" if "no version" in faults else "Version: 6.06")
    sys.exit(name != "iperf3")
with open(f"{{here}}/calls", "a") as calls, open(f"{{here}}/pids", "a") as pids:
    calls.write(" ".join([name, *words]) + "\\n")
    pids.write(f"{{os.getpid()}}\\n")
port = int(words[words.index("-p") + 1])
is_server = "-s" in words if name == "iperf3" else "." not in words[-1]
fault = dict(zip(("server", "client"), faults))["server" if is_server else "client"]
if fault == "hang":
    time.sleep(60)
elif fault == "exit":
    print("cannot do it\\nfor lack of memory", file=sys.stderr)
    sys.exit(1)
elif fault == "garbage":
    print("\\x1b[2J\\x00{{{{ what is this")
    sys.exit(0)
elif fault == "nothing":
    sys.exit(0)
elif fault == "taken":
    print('{{"start": {{"version": "iperf 3.16"}}, "error": "{taken}"}}')
    sys.exit(1)
elif fault == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
elif fault == "flood":
    while True:
        sys.stdout.write("x" * 65536)
elif fault == "slow":
    time.sleep(0.3)
if is_server:
    connection, _ = socket.create_server(("127.0.0.1", port)).accept()
    connection.recv(1)
else:
    address = words[words.index("-c") + 1] if name == "iperf3" else words[-1]
    with socket.create_connection((address, port)):
        print(open(f"{{here}}/{{name}}.txt").read())
"""


class StandIns:
    """The programs in a folder that is first in PATH."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        for name in PROGRAMS:
            words = _SCRIPT.format(python=sys.executable, here=str(folder), name=name, taken=TAKEN)
            (folder / name).write_text(words)
            (folder / name).chmod(0o755)
        self.print_iperf3((1.0,))
        for name, form in (("ib_write_bw", Perftest()), ("ib_write_lat", Perftest(unit=None))):
            (folder / f"{name}.txt").write_text(perftest(Random(1), form, [8])[0])
        self.misbehave()

    def misbehave(self, *, server: Fault | None = None, client: Fault | None = None) -> None:
        """Let servers and clients go wrong, or no longer."""
        (self.folder / "faults").write_text(f"{server or ''},{client or ''}")

    def print_iperf3(self, arrived: Sequence[float], seconds: float = 0.1) -> None:
        """Let iperf3's client print GB/s that arrived in each interval, the last one cut short."""
        document = json.loads(iperf3_json(Random(1), Iperf3(streams=4))[0])
        rows = [(rate, seconds) for rate in arrived] + [(0.5, seconds / 20)]
        document["server_output_json"] = {
            "start": document["start"],
            "intervals": [
                {"streams": [], "sum": {"seconds": s, "bits_per_second": rate * 8e9, "sender": False}}
                for rate, s in rows
            ],
            "end": {},
        }
        (self.folder / "iperf3.txt").write_text(json.dumps(document))

    @property
    def calls(self) -> list[str]:
        """The command lines that were run."""
        return self._lines("calls")

    def all_ended(self) -> bool:
        """Whether none of them runs, before long: a listener ends its server in a thread of its own."""
        end_s = time.monotonic() + 10
        while any(map(_is_running, self._lines("pids"))):
            if time.monotonic() > end_s:
                return False
            time.sleep(0.01)
        return True

    def _lines(self, name: str) -> list[str]:
        file = self.folder / name
        return file.read_text().splitlines() if file.exists() else []


def _is_running(pid: str) -> bool:
    return Path(f"/proc/{pid}").exists()
