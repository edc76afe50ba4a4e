"""The engine in its own process, on the double of libcuda.so.1."""

import subprocess
import sys
from collections.abc import Mapping, Sequence

import msgspec
import pytest

from gputopo.probes import Copy, CopyJob
from gputopo.values.ends import End
from gputopo.values.schema import as_text, from_text
from tests.kit.cuda.build import why_not
from tests.kit.cuda.derive import from_scenario
from tests.kit.cuda.layouts import named
from tests.kit.cuda.scenario import CudaSpec
from tests.kit.cuda.session import run_program
from tests.kit.cuda.words import spoilt
from tests.kit.forks import ROOT, Done
from tests.probes.cuda.engine_worker import Report, Task

needs_gcc = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

MIB = 2**20
WORKER = "tests.probes.cuda.engine_worker"
# What is copied stays in memory by the double, so cards are small here; the time that passes is virtual.
SMALL_CARDS = 96 * MIB


def box(name: str, *words: str, memory: int = SMALL_CARDS) -> CudaSpec:
    """Return a machine of the kit with faults, and cards with so much memory at most."""
    return spoilt(from_scenario(named(name)), (f"memory={memory}", *words))


def measure(
    spec: CudaSpec,
    jobs: Sequence[CopyJob],
    size: int = 4 * MIB,
    *,
    ordinals: Mapping[int, int] | None = None,
    node_cpus: Mapping[int, tuple[int, ...]] | None = None,
    patience_s: float = 5.0,
    interrupts: Sequence[int] = (),
    apart_s: float = 0.0,
) -> Report:
    """Run jobs, each copy `size` bytes (latencies: 8)."""
    task = Task(
        jobs=tuple(jobs),
        sizes=tuple(8 if job.kind == "latency" else job.bytes or size for job in jobs),
        ordinals=ordinals or {},
        node_cpus=node_cpus or {},
        patience_s=patience_s,
        interrupts=tuple(interrupts),
        apart_s=apart_s,
    )
    return _report(run_program(spec, "-m", WORKER, given=msgspec.json.encode(task, enc_hook=as_text)))


def run(task: Task, env: Mapping[str, str]) -> Report:
    """Run a task in a fresh interpreter with an environment. A worker that fails shows its traceback."""
    done = subprocess.run(
        [sys.executable, "-m", WORKER],
        input=msgspec.json.encode(task, enc_hook=as_text).decode(),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=dict(env),
        timeout=60,
        check=False,
    )
    return _report(done)


def _report(done: Done) -> Report:
    assert done.returncode == 0, done.stderr
    return msgspec.json.decode(done.stdout, type=Report, dec_hook=from_text)


def h2d(gpu: int, node: int | None = None, *, pinned: bool = True) -> Copy:
    return Copy(kind="h2d", source=End("host"), destination=End(f"gpu:{gpu}"), pinned=pinned, numa_node=node)


def d2h(gpu: int, node: int | None = None, *, pinned: bool = True) -> Copy:
    return Copy(kind="d2h", source=End(f"gpu:{gpu}"), destination=End("host"), pinned=pinned, numa_node=node)


def direct(a: int, b: int) -> Copy:
    return Copy(kind="p2p_direct", source=End(f"gpu:{a}"), destination=End(f"gpu:{b}"))


def read(a: int, b: int) -> Copy:
    return msgspec.structs.replace(direct(a, b), method="kernel_read")


def write(a: int, b: int) -> Copy:
    return msgspec.structs.replace(direct(a, b), method="kernel_write")


def staged(a: int, b: int) -> Copy:
    return Copy(kind="p2p_staged", source=End(f"gpu:{a}"), destination=End(f"gpu:{b}"))


def by_kernel(copy: Copy) -> Copy:
    """Return a copy with the host as a kernel of the GPU does it."""
    return msgspec.structs.replace(copy, method="kernel_read" if copy.kind == "h2d" else "kernel_write")


def local(gpu: int) -> Copy:
    return Copy(kind="d2d_local", source=End(f"gpu:{gpu}"), destination=End(f"gpu:{gpu}"))


def alone(copy: Copy, size: int | None = None) -> CopyJob:
    return CopyJob(kind=copy.kind, copies=(copy,), bytes=size)


def latency(copy: Copy) -> CopyJob:
    return CopyJob(kind="latency", copies=(copy,))


def both(*copies: Copy) -> CopyJob:
    return CopyJob(kind="bidirectional", copies=copies)


def together(*copies: Copy, size: int | None = None) -> CopyJob:
    return CopyJob(kind=copies[0].kind, copies=copies, group="together", bytes=size)
