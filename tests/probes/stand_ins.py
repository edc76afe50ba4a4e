"""Stand-ins for mpirun, sendrecv_perf and all_reduce_perf, and for ib_write_bw, which meets over TCP.

They print results in the formats of the real ones (`tests.kit.dialects`), and misbehave.
"""

import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Literal

import psutil
import pytest

from gputopo.copies.nccl_hosts import ALL_BYTES, BYTES
from tests.kit.dialects import nccl_tests
from tests.kit.dialects.network import Perftest, perftest

MpiFault = Literal["unreachable", "stuck", "single", "exit", "garbage", "nothing", "hang", "flood", "crash"]
# Two ranks' part of NCCL_DEBUG=INFO.
NCCL_LOG = """\
node0:71:71 [0] NCCL INFO NCCL_IB_HCA set by environment to mlx5_0
node0:71:71 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>
node0:71:90 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0/GDRDMA
"""
PYTHON = os.readlink("/proc/self/exe")  # commands may be given another one
UNREACHABLE = "ssh: connect to host {address} port 22: No route to host"
_MPIRUN = """\
#!{python} -IS
import json, os, signal, subprocess, sys, time
here, words = {here!r}, sys.argv[1:]
if words == ["--version"]:
    print("mpirun (Open MPI) 4.1.4\\n\\nReport bugs to http://www.open-mpi.org/community/help/")
    sys.exit(0)
places = [place.partition(":")[0] for place in words[words.index("--host") + 1].split(",")]
at = words.index("-np") + 2
with open(f"{{here}}/mpirun.jsonl", "a") as calls:
    calls.write(json.dumps([words, dict(os.environ)]) + "\\n")
    calls.flush()
planned = json.load(open(f"{{here}}/pairs.json"))
is_all = any(word.endswith("all_reduce_perf") for word in words)
names = ["all"] if is_all else [",".join(places), *places, ""]
what = next((planned[name] for name in names if name in planned), 1.0)
if what == "unreachable":
    print("Warning: Permanently added '10.0.0.9' to the list of known hosts.")
    print("{unreachable}".format(address=places[1]), "-" * 74, sep="\\n")
    print("ORTE was unable to reliably start one or more daemons.\\n" + "-" * 74)
    sys.exit(1)
if what == "stuck":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
own = []
for rank in range(int(words[at - 1])):
    environ = {{**os.environ, "OMPI_COMM_WORLD_RANK": str(rank), "STAND_IN": str(what)}}
    own.append(subprocess.Popen(words[at:], env=environ, process_group=0))
with open(f"{{here}}/pids", "a") as pids:
    pids.writelines(f"{{pid}}\\n" for pid in (os.getpid(), *(one.pid for one in own)))
def end(*_):
    for one in own:
        os.killpg(one.pid, signal.SIGKILL)
    sys.exit(1)
if what != "stuck":
    signal.signal(signal.SIGTERM, end)
codes = [one.wait() for one in own]
if any(codes):
    print("-" * 74 + "\\nPrimary job  terminated normally, but 1 process returned\\na non-zero exit code.")
    sys.exit(abs(codes[0]))
"""
_OF_NCCL_TESTS = """\
#!{python} -IS
import os, signal, sys, time
here, what = {here!r}, os.environ["STAND_IN"] or "1.0"
leads = os.environ["OMPI_COMM_WORLD_RANK"] == "0"
if what in ("hang", "stuck"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(60)
elif what == "single":
    print(open(f"{{here}}/single.txt").read())
elif leads and what == "crash":
    os.kill(os.getpid(), signal.SIGSEGV)
elif leads and what == "exit":
    print("node0: Test CUDA failure common.cu:894 'out of memory'")
    print(" .. node0 pid 71: Test failure common.cu:1")
    sys.exit(2)
elif leads and what == "garbage":
    print("\\x1b[2J\\x00{{{{ what is this")
elif leads and what == "flood":
    while True:
        sys.stdout.write("x" * 65536)
elif leads and sys.argv[0].endswith("all_reduce_perf"):
    print(open(f"{{here}}/all.txt").read())
elif leads and what != "nothing":
    print(open(f"{{here}}/{{float(what)}}.txt").read())
"""


class NcclTests:
    """mpirun and sendrecv_perf in a folder that is first in PATH; mpirun starts all ranks on this host."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        words = {"python": PYTHON, "here": str(folder), "unreachable": UNREACHABLE}
        for name, script in (("mpirun", _MPIRUN), ("sendrecv_perf", _OF_NCCL_TESTS)):
            (folder / name).write_text(script.format(**words))
            (folder / name).chmod(0o755)
        (folder / "single.txt").write_text(nccl_tests.one_size("sendrecv", 900.0, BYTES, hosts=1))
        self.plan({})

    def install_all_reduce(self, gb_per_s: float, hosts: int, gpus: int = 1) -> str:
        """Install all_reduce_perf with what it prints; return its path."""
        path = self.folder / "all_reduce_perf"
        shutil.copy(self.folder / "sendrecv_perf", path)
        printed = nccl_tests.one_size("all_reduce", gb_per_s, ALL_BYTES, hosts=hosts, gpus=gpus)
        (self.folder / "all.txt").write_text(NCCL_LOG + printed)
        return str(path)

    def plan(self, pairs: Mapping[str, float | MpiFault]) -> None:
        """Let pairs `address,address`, all pairs of an address, or all others (an empty name) give a rate
        (GB/s; 1 where nothing is planned) or go wrong. `all`: the all-reduce.
        """
        (self.folder / "pairs.json").write_text(json.dumps(pairs))
        for rate in {1.0, *(one for one in pairs.values() if isinstance(one, float))}:
            (self.folder / f"{rate}.txt").write_text(NCCL_LOG + nccl_tests.one_size("sendrecv", rate, BYTES))

    @property
    def calls(self) -> list[tuple[list[str], dict[str, str]]]:
        """The words and variables that mpirun was started with."""
        file = self.folder / "mpirun.jsonl"
        return [tuple(json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []

    def all_ended(self) -> bool:
        """Whether neither mpirun runs, nor what it started, before long."""
        file = self.folder / "pids"
        return _all_ended(file.read_text().splitlines() if file.exists() else [])


_PERFTEST = """\
#!{python} -IS
import socket, sys, time
here, words = {here!r}, sys.argv[1:]
with open(f"{{here}}/calls", "a") as calls:
    calls.write(" ".join(words) + "\\n")
port, fault = int(words[words.index("-p") + 1]), open(f"{{here}}/fault").read()
if "." not in words[-1]:
    socket.create_server(("127.0.0.1", port)).accept()[0].recv(1)
else:
    try:
        server = socket.create_connection((words[-1], port))
    except OSError:
        sys.exit(f" Couldn't connect to {{words[-1]}}:{{port}}")
    with server:
        if fault == "hang":
            time.sleep(60)
        if fault == "exit":
            sys.exit("cannot do it\\nfor lack of memory")
        print({{"": {text!r}, "garbage": "\\x1b[2J\\0{{ what is this"}}.get(fault, ""))
"""


def install_perftest(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """Install ib_write_bw with 24.5 GB/s in a folder that is first in PATH; its file `fault` has one."""
    patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    text, (sample,) = perftest(Random(0), Perftest(duration=True, streams=4), (65536,))
    rate = f"{(sample.median_gb_per_s or 0.0) * 8:.2f}"
    assert rate in text
    words = {"python": PYTHON, "here": str(folder), "text": text.replace(rate, "196.00")}
    (folder / "ib_write_bw").write_text(_PERFTEST.format(**words))
    (folder / "ib_write_bw").chmod(0o755)
    (folder / "fault").touch()
    return folder


def _all_ended(pids: Sequence[str]) -> bool:
    end_s = time.monotonic() + 10
    while any(map(_is_running, pids)):
        if time.monotonic() > end_s:
            return False
        time.sleep(0.01)
    return True


def _is_running(pid: str) -> bool:
    try:
        return psutil.Process(int(pid)).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
