"""What is compared on a machine with GPUs. A check yields rows of a table: what, both sides, if they agree.

None in the place of the verdict: it could not be tried.
"""

import contextlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

Row = tuple[str, str, bool | None]
Key = tuple[str, ...]

PROGRAM = """
import torch
from gputopo.launch.throughput import Steps

a = torch.rand(4096, 4096, device="cuda")
with Steps(examples=1) as steps:
    for _ in range(400):
        a = torch.nn.functional.normalize(a @ a)
        torch.cuda.synchronize()
        steps.done()
"""


def near(what: str, pairs: Mapping[str, tuple[float, float]], share: float) -> Row:
    """Return the row of numbers that should be within a share of their references: the worst of them."""
    if not pairs:
        return what, "nothing to compare", None
    worst = max(pairs, key=lambda name: abs(pairs[name][0] / pairs[name][1] - 1))
    good = sum(abs(one / other - 1) <= share for one, other in pairs.values())
    words = "{} of {} within {:.0%}; worst {}: {:.4g}, {:.4g}".format(
        good, len(pairs), share, worst, *pairs[worst]
    )
    return what, words, good == len(pairs)


@dataclass
class Box:
    """The machine that is looked at. `gputopo`, `plain`: the beginnings of their command lines."""

    folder: Path
    gputopo: Sequence[str] = (sys.executable, "-m", "gputopo")
    plain: Sequence[str] = (sys.executable, "-m", "tests.gpu.plain")
    environment: Mapping[str, str] | None = None
    nvbandwidth: str | None = None
    limit: Sequence[str] = ()  # --gpus of bandwidth
    is_double: bool = False

    def run(self, *command: str) -> str:
        """Return what a command prints. Raises RuntimeError with its last line where it fails."""
        done = subprocess.run(command, capture_output=True, text=True, env=self.environment, timeout=1800)
        if done.returncode not in (0, 1):  # 1: findings
            raise RuntimeError(f"exit code {done.returncode}: {done.stderr.strip()[-200:]}")
        return done.stdout

    def keep(self, name: str, *command: str) -> Any:
        """Return the JSON that a command prints, kept as a file."""
        text = self.run(*command)
        (self.folder / f"{name}.json").write_text(text)
        return json.loads(text)

    @cached_property
    def recording(self) -> str:
        """The machine, before anything is measured."""
        path = str(self.folder / "machine.json")
        self.run(*self.gputopo, "inspect", "--record", path)
        return path

    @cached_property
    def sessions(self) -> list[Any]:
        """A quick and a full session."""
        levels = ("quick", "full")
        return [
            self.keep(one, *self.gputopo, "bandwidth", f"--{one}", "--json", *self.limit) for one in levels
        ]

    def alone(self, task: str) -> Any:
        """Return what `tests.gpu.plain` finds."""
        return self.keep(f"plain-{task}", *self.plain, self.recording, task)


def facts(box: Box) -> Iterator[Row]:
    """NVML facts beside nvidia-smi."""
    what = "facts of NVML beside nvidia-smi -q -x"
    smi = shutil.which("nvidia-smi", path=(box.environment or {}).get("PATH"))
    if smi is None:
        yield what, "nvidia-smi is not on PATH", None
        return
    with tempfile.TemporaryDirectory() as folder:  # not kept: it has serials and UUIDs
        other = Path(folder) / "smi.xml"
        other.write_text(box.run(smi, "-q", "-x"))
        found = json.loads(box.run(*box.gputopo, "inspect", "--diff", str(other), "--json"))
    changes = [one["says"] for one in found["changes"] if one["was"] is not None and one["is"] is not None]
    yield what, f"{len(changes)} differ{': ' if changes else ''}{'; '.join(changes[:3])}", not changes


def rates(samples: Sequence[Mapping[str, Any]]) -> dict[Key, float]:
    """Return the highest rate of each copy that ran alone, by kind, method, source and destination."""
    found: dict[Key, float] = {}
    for one in samples:
        rate = one.get("gb_per_s") or one.get("median_gb_per_s")
        small = (one.get("bytes") or 2**24) < 2**24
        own = one["kind"] != "host_memory" and one.get("path") != "staged" and one.get("pinned") is not False
        if rate and own and not small and not one.get("group"):
            key = (one["kind"], one["method"], one["source"], one["destination"])
            found[key] = max(rate, found.get(key, 0.0))
    return found


def copies(box: Box) -> Iterator[Row]:
    """Every kind of copy by a quick and a full session, by nvbandwidth's method, by nvbandwidth."""
    plain = "nvbandwidth's method"
    found = {name: rates(one["samples"]) for name, one in zip(("quick", "full"), box.sessions, strict=True)}
    found[plain] = rates(box.alone("rates"))
    beside = [("quick", "full"), ("quick", plain), ("full", plain)]
    if box.nvbandwidth is not None:
        text = box.folder / "nvbandwidth.txt"
        text.write_text(box.run(box.nvbandwidth))
        read = box.keep("nvbandwidth", *box.gputopo, "bandwidth", "--from", str(text), "--json")
        found["nvbandwidth"] = rates(read["samples"])
        beside += [("quick", "nvbandwidth"), (plain, "nvbandwidth")]
    for one, other in beside:
        both = [key for key in found[one] if key in found[other]]
        for of in dict.fromkeys(key[:2] for key in both):
            own = [key for key in both if key[:2] == of]
            pairs = {f"{key[2]} to {key[3]}": (found[one][key], found[other][key]) for key in own}
            yield near(f"{' by '.join(of)}: {one}, {other}", pairs, 0.01)


def engine(box: Box) -> Iterator[Row]:
    """Start skew, copies in the L2 and beyond it, what readings of NVML cost."""
    found = {f"gpu:{one['gpu']}": one for one in box.alone("engine")}
    apart = max(one["skew"] for one in found.values())
    yield "streams of a GPU begin together", f"{apart:.2%} of a window apart", apart <= 0.01
    plain = rates(json.loads((box.folder / "plain-rates.json").read_text()))
    local = {key[2]: rate for key, rate in plain.items() if key[0] == "d2d_local"}
    beyond = {place: (one["alone"], local[place]) for place, one in found.items() if place in local}
    yield near("copies in GPU memory of 4 times the L2, of 512 MiB", beyond, 0.01)
    times = max(one["small"] / one["alone"] for one in found.values())
    yield "copies of half the L2", f"{times:.2f} times as fast as beyond it", True if times > 1 else None
    reads = {place: (one["read"], one["alone"]) for place, one in found.items()}
    yield near("copies with NVML read, without", reads, 0.01)


def latency(box: Box) -> Iterator[Row]:
    """Latencies of a quick and a full session."""
    names = ("source", "destination", "method", "path")
    found: list[dict[str, float]] = []
    for session in box.sessions:
        own = [one for one in session["samples"] if one["kind"] == "latency" and not one["group"]]
        found.append({" ".join(str(one[name]) for name in names): one["median_us"] for one in own})
    both = {name: (us, found[1][name]) for name, us in found[0].items() if name in found[1]}
    yield near("latency: quick, full", both, 0.05)


def conditions(box: Box) -> Iterator[Row]:
    """Clocks in the timed windows; ECC errors over all sessions."""
    samples = [one for one in box.sessions[0]["samples"] if one["kind"] in ("h2d", "d2h")]
    alone = [one for one in samples if one["pinned"] and not one["group"]]
    read = [s for s in alone if all(one["readings"] and one["graphics_mhz"] for one in s["conditions"])]
    yield "clocks read inside the windows", f"{len(read)} of {len(alone)} copies", len(read) == len(alone)
    before = json.loads(Path(box.recording).read_text())
    after = box.keep("after", *box.gputopo, "inspect", "--json")["machine"]
    were, now = ([gpu["ecc"] for gpu in machine["gpus"]] for machine in (before, after))
    yield "ECC counters before and after all copies", "equal" if were == now else str(now), were == now


def program(box: Box) -> Iterator[Row]:
    """A PyTorch program under `run`, alone and beside another process on its GPU; `inspect --watch`."""
    what = "run -- python with a PyTorch program"
    if box.is_double:
        yield what, "the double of NVML knows no processes of this machine", None
        return
    with loaded(box) as pid:
        text = box.run(*box.gputopo, "inspect", "--watch", "--duration", "5s", "--json")
    yield "inspect --watch names a process under load", f"pid {pid}", str(pid) in text
    has_torch = [sys.executable, "-c", "import torch; raise SystemExit(not torch.cuda.is_available())"]
    if subprocess.run(has_torch, capture_output=True).returncode:
        yield what, "no PyTorch that uses a GPU", None
        return

    def result() -> str:
        with tempfile.TemporaryDirectory() as folder:  # not kept: events have UUIDs
            script = Path(folder) / "program.py"
            script.write_text(PROGRAM)
            ours = ("run", "--gpus", "0", "--output", f"{folder}/run", "--", sys.executable, str(script))
            box.run(*box.gputopo, *ours)
            return (Path(folder) / "run" / "result.json").read_text()

    speed = (json.loads(result())["throughput"] or {}).get("median")
    yield what, f"{speed} steps/s", bool(speed)
    with loaded(box) as pid:
        yield "its result names a process that slows it", f"pid {pid}", str(pid) in result()


def weights(box: Box) -> Iterator[Row]:
    """When the weights are there, without a gate and with one: that of a drill that never begins."""
    what = "wait for the weights of AlexNet, beside one with a gate (median ms)"
    if box.is_double:
        yield what, "TensorFlow has no GPU of the double", None
        return
    words = "run --model alexnet --gpus 0 --variable-update parameter_server --ps cpu --num-batches 100"
    found, speeds = [], []
    for gate in ((), ("--drill", "slow-weights=0:0.99@1000000")):
        with tempfile.TemporaryDirectory() as folder:  # not kept: events have UUIDs
            box.run(*box.gputopo, *words.split(), *gate, "--output", f"{folder}/run")
            events = map(json.loads, Path(folder, "run", "events.jsonl").read_text().splitlines())
            steps = [one for one in events if one["event"] == "step" and one["step"] > 0]
        found.append(1000 * median(one["marks"][0]["weights_s"] for one in steps))
        speeds.append(median(one["images"] / one["seconds"] for one in steps))
    yield near(what, {"GPU 0": (found[0], found[1])}, 0.1)
    yield (
        "images/sec without the gate, with it",
        "{:.4g}, {:.4g}".format(*speeds),
        speeds[0] > 0.98 * speeds[1],
    )


@contextlib.contextmanager
def loaded(box: Box) -> Iterator[int]:
    """Let another process copy inside GPU 0; its number."""
    command = (*box.plain, box.recording, "load")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=box.environment) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process.pid
        finally:
            process.kill()


def recordings(box: Box) -> Iterator[Row]:
    """What is kept has no serials and no UUIDs."""
    identity = re.compile(r"\b(?:GPU|MIG)-[0-9a-f]{8}-|\"serial\": \"")
    kept = [path for path in box.folder.rglob("*") if path.is_file()]
    found = [path.name for path in kept if identity.search(path.read_text(errors="replace"))]
    yield "no serials and UUIDs in what is kept", ", ".join(found) or "none", not found


CHECKS: tuple[Callable[[Box], Iterator[Row]], ...] = (
    facts,
    copies,
    engine,
    latency,
    conditions,
    program,
    weights,
    recordings,
)
