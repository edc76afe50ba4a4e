"""What is compared on a machine with GPUs: each check yields rows of a table, agreed or not."""

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
from typing import Any, Literal, NamedTuple

Key = tuple[str, ...]

# PyTorch on GPU 0, with its steps reported; the last line is how it went.
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


class Row(NamedTuple):
    """A line of the table: what, both sides, and whether they agree."""

    what: str
    measured: str
    reference: str
    verdict: Literal["agreed", "NOT", "not tried"]


def agreed(good: bool) -> Literal["agreed", "NOT"]:
    """Return the verdict of a check."""
    return "agreed" if good else "NOT"


def not_tried(what: str, reason: str) -> Iterator[Row]:
    """Yield the row of a check that cannot be made here."""
    yield Row(what, reason, "", "not tried")


def near(what: str, pairs: Mapping[str, tuple[float, float]], share: float) -> Iterator[Row]:
    """Yield the row of numbers that should be within a share of their references: the worst of them."""
    if not pairs:
        yield from not_tried(what, "nothing to compare")
        return
    worst = max(pairs, key=lambda name: abs(pairs[name][0] / pairs[name][1] - 1))
    own, other = pairs[worst]
    good = sum(abs(a / b - 1) <= share for a, b in pairs.values())
    words = f"{good} of {len(pairs)} within {share:.0%}; worst {worst}: {own:.4g}"
    yield Row(what, words, f"{other:.4g}", agreed(good == len(pairs)))


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

    def run(self, command: Sequence[str], *, whole: bool = True) -> str:
        """Return what a command prints. Raises RuntimeError with its last line where it fails."""
        done = subprocess.run(command, capture_output=True, text=True, env=self.environment, timeout=1800)
        if done.returncode not in (0, 1) or (whole and not done.stdout):
            last = (done.stderr.strip() or "nothing printed").splitlines()[-1]
            raise RuntimeError(f"exit code {done.returncode}: {last}")
        return done.stdout

    def keep(self, name: str, *command: str) -> dict[str, Any]:
        """Return the JSON that gputopo prints, kept as a file."""
        text = self.run((*self.gputopo, *command, "--json"))
        (self.folder / f"{name}.json").write_text(text)
        found: dict[str, Any] = json.loads(text)
        return found

    @cached_property
    def recording(self) -> Path:
        """The machine, before anything is measured."""
        path = self.folder / "machine.json"
        self.keep("inspect", "inspect", "--record", str(path))
        return path

    @cached_property
    def quick(self) -> dict[str, Any]:
        """A quick session."""
        return self.keep("quick", "bandwidth", "--quick", *self.limit)

    @cached_property
    def full(self) -> dict[str, Any]:
        """A full session."""
        return self.keep("full", "bandwidth", "--full", *self.limit)

    def alone(self, task: str) -> list[dict[str, Any]]:
        """Return what `tests.gpu.plain` finds, kept as a file."""
        text = self.run((*self.plain, str(self.recording), task))
        (self.folder / f"plain-{task}.json").write_text(text)
        found: list[dict[str, Any]] = json.loads(text)
        return found


def facts(box: Box) -> Iterator[Row]:
    """NVML facts beside nvidia-smi."""
    what = "facts of NVML beside nvidia-smi -q -x"
    smi = shutil.which("nvidia-smi", path=(box.environment or {}).get("PATH"))
    if smi is None:
        yield from not_tried(what, "nvidia-smi is not on PATH")
        return
    with tempfile.TemporaryDirectory() as folder:  # it has serials and UUIDs
        other = Path(folder) / "smi.xml"
        other.write_text(box.run([smi, "-q", "-x"]))
        found = json.loads(box.run((*box.gputopo, "inspect", "--diff", str(other), "--json")))
    changes = [one["says"] for one in found["changes"] if one["was"] is not None and one["is"] is not None]
    yield Row(what, "; ".join(changes[:3]) or "none differ", str(len(changes)), agreed(not changes))


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
    found = {"quick": rates(box.quick["samples"]), "full": rates(box.full["samples"])}
    found[plain] = rates(box.alone("rates"))
    beside = [("quick", "full"), ("quick", plain), ("full", plain)]
    if box.nvbandwidth is not None:
        (box.folder / "nvbandwidth.txt").write_text(box.run([box.nvbandwidth]))
        read = box.keep("nvbandwidth", "bandwidth", "--from", str(box.folder / "nvbandwidth.txt"))
        found["nvbandwidth"] = rates(read["samples"])
        beside += [("quick", "nvbandwidth"), (plain, "nvbandwidth")]
    for one, other in beside:
        both = [key for key in found[one] if key in found[other]]
        for kind, method in dict.fromkeys(key[:2] for key in both):
            pairs = {
                f"{key[2]} to {key[3]}": (found[one][key], found[other][key])
                for key in both
                if key[:2] == (kind, method)
            }
            yield from near(f"{kind} by {method}: {one}, {other}", pairs, 0.01)


def engine(box: Box) -> Iterator[Row]:
    """Start skew, copies in the L2 and beyond it, what readings of NVML cost."""
    found = {f"gpu:{one['gpu']}": one for one in box.alone("engine")}
    apart = max(one["skew"] for one in found.values())
    yield Row(
        "streams of a GPU begin together", f"{apart:.2%} of a window apart", "1%", agreed(apart <= 0.01)
    )
    plain = rates(json.loads((box.folder / "plain-rates.json").read_text()))
    local = {key[2]: rate for key, rate in plain.items() if key[0] == "d2d_local"}
    beyond = {place: (one["alone"], local[place]) for place, one in found.items() if place in local}
    yield from near("copies in GPU memory of 4 times the L2, of 512 MiB", beyond, 0.01)
    times = max(one["small"] / one["alone"] for one in found.values())
    row = "copies of half the L2 are those of a cache"
    yield Row(row, f"{times:.2f} times as fast as beyond it", "", "agreed" if times > 1 else "not tried")
    reads = {place: (one["read"], one["alone"]) for place, one in found.items()}
    yield from near("copies with NVML read, without", reads, 0.01)


def latency(box: Box) -> Iterator[Row]:
    """Latencies of a quick and a full session."""
    found: list[dict[str, float]] = []
    for session in (box.quick, box.full):
        own = [one for one in session["samples"] if one["kind"] == "latency" and not one["group"]]
        names = ("source", "destination", "method", "path")
        found.append({" ".join(str(one[name]) for name in names): one["median_us"] for one in own})
    both = {name: (us, found[1][name]) for name, us in found[0].items() if name in found[1]}
    yield from near("latency: quick, full", both, 0.05)


def conditions(box: Box) -> Iterator[Row]:
    """Clocks, link and throttle reasons in the timed windows; ECC errors over all sessions."""
    samples = [one for one in box.quick["samples"] if one["kind"] in ("h2d", "d2h")]
    alone = [one for one in samples if one["pinned"] and not one["group"]]
    read = [s for s in alone if all(one["readings"] and one["graphics_mhz"] for one in s["conditions"])]
    same = agreed(len(read) == len(alone))
    yield Row("clocks read inside the windows", f"{len(read)}", f"{len(alone)} copies", same)
    before = json.loads(box.recording.read_text())
    after = box.keep("after", "inspect")["machine"]
    were, now = ([gpu["ecc"] for gpu in machine["gpus"]] for machine in (before, after))
    words = "equal" if were == now else str(now)
    yield Row("ECC counters before and after all copies", words, "", agreed(were == now))


def program(box: Box) -> Iterator[Row]:
    """A PyTorch program under `run`, alone and beside another process on its GPU."""
    what = "run -- python with a PyTorch program"
    has_torch = [sys.executable, "-c", "import torch; raise SystemExit(not torch.cuda.is_available())"]
    if box.is_double or subprocess.run(has_torch, capture_output=True).returncode:
        yield from not_tried(what, "no PyTorch that uses a GPU")
        return
    script = box.folder / "program.py"
    script.write_text(PROGRAM)

    def result(name: str) -> str:
        folder = box.folder / name
        ours = ("run", "--gpus", "0", "--output", str(folder), "--", sys.executable, str(script))
        box.run((*box.gputopo, *ours), whole=False)
        return (folder / "result.json").read_text()

    speed = json.loads(result("run"))["images_per_sec"]
    yield Row(what, f"{speed} steps/s", "above 0", agreed(bool(speed)))
    with loaded(box) as pid:
        named = str(pid) in result("run-beside")
    yield Row("its result names a process that slows it", f"pid {pid}", "", agreed(named))


def watch(box: Box) -> Iterator[Row]:
    """Another process on a GPU is named."""
    what = "inspect --watch names a process under load"
    if box.is_double:
        yield from not_tried(what, "the double of NVML knows no processes of this machine")
        return
    with loaded(box) as pid:
        text = box.run((*box.gputopo, "inspect", "--watch", "--duration", "5s", "--json"))
    yield Row(what, f"pid {pid}", "", agreed(str(pid) in text))


def weights(box: Box) -> Iterator[Row]:
    """When the weights are there, without a gate and with one: that of a drill that never begins."""
    what = "wait for the weights of AlexNet, beside one with a gate (median ms)"
    if box.is_double:
        yield from not_tried(what, "TensorFlow has no GPU of the double")
        return
    words = "run --model alexnet --gpus 0 --variable-update parameter_server --ps cpu --num-batches 100"
    found, rates = [], []
    for gate in ((), ("--drill", "slow-weights=0:0.99@1000000")):
        with tempfile.TemporaryDirectory() as folder:  # events have UUIDs
            box.run((*box.gputopo, *words.split(), *gate, "--output", f"{folder}/run"))
            events = map(json.loads, Path(folder, "run", "events.jsonl").read_text().splitlines())
            steps = [one for one in events if one["event"] == "step" and one["step"] > 0]
        found.append(1000 * median(one["marks"][0]["weights_s"] for one in steps))
        rates.append(median(one["images"] / one["seconds"] for one in steps))
    yield from near(what, {"GPU 0": (found[0], found[1])}, 0.1)
    yield Row(
        "images/sec without the gate",
        f"{rates[0]:.4g}",
        f"{rates[1]:.4g}",
        agreed(rates[0] > 0.98 * rates[1]),
    )


@contextlib.contextmanager
def loaded(box: Box) -> Iterator[int]:
    """Let another process copy inside GPU 0; its number."""
    command = (*box.plain, str(box.recording), "load")
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
    yield Row("no serials and UUIDs in what is kept", ", ".join(found) or "none", "", agreed(not found))


CHECKS: tuple[Callable[[Box], Iterator[Row]], ...] = (
    facts,
    copies,
    engine,
    latency,
    conditions,
    program,
    watch,
    weights,
    recordings,
)
