"""What is compared on a machine with GPUs. A check yields rows of a table: what, both sides, if they agree.

None in the place of the verdict: it could not be tried. The order is by worth: a check that no longer fits
into the time is not tried. Nothing of gputopo is imported here.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tests.gpu.box import Box, NotTriedError

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
PLAIN = "nvbandwidth's method"
# Of large copies in one direction. Not measured; chosen because a fault of a method is larger.
SAME_METHOD = 0.01

# An expression for the number of GPUs that TensorFlow finds, once it has its CUDA libraries.
_TENSORFLOWS_GPUS = (
    "(__import__('gputopo.probes', fromlist=['load']).load_cuda_libraries(), "
    "len(tensorflow.config.list_physical_devices('GPU')))[1]"
)


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


def inspecting(box: Box) -> Iterator[Row]:
    """Seconds of `inspect` at the first contact with the driver, and again."""
    paths = Path(box.recording), box.record("machine-again")
    missing = [json.loads(path.read_text()).get("missing", {}) for path in paths]
    lost = sorted(set(missing[0]) - set(missing[1]))
    words = "{:.1f} s, {:.1f} s".format(*box.recorded_s)
    words += f"; missing the first time only: {', '.join(lost[:5])}" if lost else ""
    yield "inspect at the first contact with the driver, and again", words, not lost


def facts(box: Box) -> Iterator[Row]:
    """Facts of NVML beside nvidia-smi -q -x."""
    with tempfile.TemporaryDirectory() as folder:  # not kept: it has serials and UUIDs
        other = Path(folder) / "smi.xml"
        other.write_text(box.smi)
        found = json.loads(box.run(*box.gputopo, "inspect", "--diff", str(other), "--json"))
    changes = [one["says"] for one in found["changes"] if one["was"] is not None and one["is"] is not None]
    box.write("differences.txt", "".join(f"{change}\n" for change in changes))
    words = f"{len(changes)} differ{': ' if changes else ''}{'; '.join(changes[:3])}"
    yield "facts of NVML beside nvidia-smi -q -x", words, not changes


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


def compared(names: str, these: Mapping[Key, float], others: Mapping[Key, float]) -> Iterator[Row]:
    """Yield a row for each kind and method of copy that both have."""
    both = [key for key in these if key in others]
    for kind in dict.fromkeys(key[:2] for key in both):
        keys = [key for key in both if key[:2] == kind]
        pairs = {f"{key[2]} to {key[3]}": (these[key], others[key]) for key in keys}
        yield near(f"{' by '.join(kind)}: {names}", pairs, SAME_METHOD)
    if not both:
        yield f"copies: {names}", "nothing to compare", None


def copies(box: Box) -> Iterator[Row]:
    """Copies of a quick session, by nvbandwidth's method, of nvbandwidth."""
    quick = rates(box.quick["samples"])
    yield from compared(f"quick, {PLAIN}", quick, rates(box.plain_rates))
    try:
        yield from compared("quick, nvbandwidth", quick, rates(_by_nvbandwidth(box)))
    except NotTriedError as error:
        yield "copies: quick, nvbandwidth", str(error), None


def _by_nvbandwidth(box: Box) -> Any:
    if box.nvbandwidth is None:
        raise NotTriedError("there is no nvbandwidth: --nvbandwidth PROGRAM")
    text = box.write("nvbandwidth.txt", box.run(box.nvbandwidth))
    return box.keep("nvbandwidth", *box.gputopo, "bandwidth", "--from", str(text), "--json")["samples"]


def holding(box: Box) -> Iterator[Row]:
    """A stream is blocked, and released by a write."""
    found = box.alone("hold")
    words = []
    for one in found:
        times = ", ".join(f"{us:.1f} us by {name}" for name, us in one["released_us"].items())
        words.append(f"GPU {one['gpu']} {one['way'] or one['refused']} (from the write to its end {times})")
    yield "how streams are held back until a write", "; ".join(words), all(one["way"] for one in found)


def full(box: Box) -> Iterator[Row]:
    """Copies and latencies of a quick and a full session."""
    if box.is_double:
        raise NotTriedError("a full session takes minutes on the double")
    sessions = [session["samples"] for session in (box.quick, box.full_session)]
    quick, whole = map(rates, sessions)
    yield from compared("quick, full", quick, whole)
    names = ("source", "destination", "method", "path")
    latencies: list[dict[str, float]] = []
    for samples in sessions:
        alone = [one for one in samples if one["kind"] == "latency" and not one["group"]]
        latencies.append({" ".join(str(one[name]) for name in names): one["median_us"] for one in alone})
    both = {name: (us, latencies[1][name]) for name, us in latencies[0].items() if name in latencies[1]}
    yield near("latency: quick, full", both, 0.05)


def conditions(box: Box) -> Iterator[Row]:
    """Clocks in the timed windows; ECC errors over all sessions."""
    samples = [one for one in box.quick["samples"] if one["kind"] in ("h2d", "d2h")]
    alone = [one for one in samples if one["pinned"] and not one["group"]]
    read = [s for s in alone if all(one["readings"] and one["graphics_mhz"] for one in s["conditions"])]
    yield "clocks read inside the windows", f"{len(read)} of {len(alone)} copies", len(read) == len(alone)
    before = json.loads(Path(box.recording).read_text())
    after = box.keep("after", *box.gputopo, "inspect", "--json")["machine"]
    were, now = ([gpu["ecc"] for gpu in machine["gpus"]] for machine in (before, after))
    yield "ECC counters before and after all copies", "equal" if were == now else str(now), were == now


def engine(box: Box) -> Iterator[Row]:
    """Start skew, copies in the L2 and beyond it, what readings of NVML cost."""
    found = {f"gpu:{one['gpu']}": one for one in box.alone("engine")}
    apart = max(one["skew"] for one in found.values())
    yield "streams of a GPU begin together", f"{apart:.2%} of a window apart", apart <= 0.01
    local = {key[2]: rate for key, rate in rates(box.plain_rates).items() if key[0] == "d2d_local"}
    beyond = {place: (one["alone"], local[place]) for place, one in found.items() if place in local}
    yield near("copies in GPU memory of 4 times the L2, of 512 MiB", beyond, 0.01)
    times = max(one["small"] / one["alone"] for one in found.values())
    yield "copies of half the L2", f"{times:.2f} times as fast as beyond it", True if times > 1 else None
    reads = {place: (one["read"], one["alone"]) for place, one in found.items()}
    yield near("copies with NVML read, without", reads, 0.01)


def program(box: Box) -> Iterator[Row]:
    """A PyTorch program under `run`, alone and beside another process on its GPU; `inspect --watch`."""
    if box.is_double:
        raise NotTriedError("the double of NVML knows no processes of this machine")
    with loaded(box) as pid:
        text = box.run(*box.gputopo, "inspect", "--watch", "--duration", "5s", "--json")
    yield "inspect --watch names a process under load", f"pid {pid}", str(pid) in text
    box.require("torch", "torch.cuda.is_available()")

    def result() -> str:
        with tempfile.TemporaryDirectory() as folder:  # not kept: events have UUIDs
            script = Path(folder) / "program.py"
            script.write_text(PROGRAM)
            ours = ("run", "--gpus", "0", "--output", f"{folder}/run", "--", sys.executable, str(script))
            box.run(*box.gputopo, *ours)
            return (Path(folder) / "run" / "result.json").read_text()

    speed = (json.loads(result())["throughput"] or {}).get("median")
    yield "run -- python with a PyTorch program", f"{speed} steps/s", bool(speed)
    with loaded(box) as pid:
        yield "its result names a process that slows it", f"pid {pid}", str(pid) in result()


def weights(box: Box) -> Iterator[Row]:
    """When the weights are there, without a gate and with one: that of a drill that never begins."""
    if box.is_double:
        raise NotTriedError("TensorFlow has no GPU of the double")
    box.require("tensorflow", f"{_TENSORFLOWS_GPUS} > 0")
    words = "run --model alexnet --gpus 0 --variable-update parameter_server --ps cpu --num-batches 100"
    found, speeds = [], []
    for gate in ((), ("--drill", "slow-weights=0:0.99@1000000")):
        with tempfile.TemporaryDirectory() as folder:  # not kept: events have UUIDs
            box.run(*box.gputopo, *words.split(), *gate, "--output", f"{folder}/run")
            events = map(json.loads, Path(folder, "run", "events.jsonl").read_text().splitlines())
            steps = [one for one in events if one["event"] == "step" and one["step"] > 0]
        found.append(1000 * median(one["marks"][0]["weights_s"] for one in steps))
        speeds.append(median(one["images"] / one["seconds"] for one in steps))
    pair = {"GPU 0": (found[0], found[1])}
    yield near("wait for the weights of AlexNet, beside one with a gate (median ms)", pair, 0.1)
    yield (
        "images/sec without the gate, with it",
        "{:.4g}, {:.4g}".format(*speeds),
        speeds[0] > 0.98 * speeds[1],
    )


def packed(box: Box) -> Iterator[Row]:
    """NCCL with small gradients together, and each by itself: the same losses, and the speeds."""
    if box.is_double:
        raise NotTriedError("TensorFlow has no GPU of the double")
    box.require("tensorflow", f"{_TENSORFLOWS_GPUS} > 1")
    words = (
        "run --model resnet50 --num-gpus 2 --variable-update replicated --all-reduce nccl --num-batches 50"
    )
    losses, speeds = [], []
    for how in ((), ("--agg-small-grads-max-bytes", "0")):
        with tempfile.TemporaryDirectory() as folder:  # not kept: events have UUIDs
            result = json.loads(
                box.run(*box.gputopo, *words.split(), *how, "--json", "--output", f"{folder}/run")
            )
        losses.append(result["last_loss"])
        speeds.append(result["throughput"]["mean"])
    yield near(
        "last loss with NCCL, small gradients together and each by itself",
        {"loss": (losses[0], losses[1])},
        0.05,
    )
    words = "{:.4g}, {:.4g}".format(*speeds)
    yield "images/sec with small gradients together, and each by itself", words, speeds[0] > 0.98 * speeds[1]


@contextlib.contextmanager
def loaded(box: Box) -> Iterator[int]:
    """Let another process copy inside GPU 0; its number."""
    command = (*box.plain, box.recording, "load")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=box.environment) as process:
        limit = threading.Timer(max(box.left_s, 0.0), process.kill)
        limit.start()
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process.pid
        finally:
            limit.cancel()
            process.kill()


def kept(box: Box) -> Iterator[Row]:
    """What is kept has no serials and no UUIDs."""
    found = box.unmasked()
    yield "no serials and UUIDs in what is kept", ", ".join(found) or "none", not found


CHECKS: tuple[Callable[[Box], Iterator[Row]], ...] = (
    inspecting,
    facts,
    copies,
    holding,
    full,
    conditions,
    engine,
    program,
    weights,
    packed,
)


def rows(box: Box) -> Iterator[Row]:
    """Yield the rows of all checks; of one that fails or cannot be tried why."""
    for check in (*CHECKS, kept):
        what = (check.__doc__ or "").rstrip(".")
        try:
            if box.left_s <= 0 and check is not kept:
                raise NotTriedError("no time left")
            yield from check(box)
        except NotTriedError as error:
            yield what, str(error), None
        except (RuntimeError, OSError, LookupError, ValueError) as error:
            yield what, f"{type(error).__name__}: {error}", False
