"""Damaged captures of every format: tracebacks, slow cases, and facts that the text does not contain.

Run `python -m tests.benchmarks.bench_fuzz [--cases 100000] [--seed 1]`. The texts are the texts
that the tests invent, and the public captures next to this checkout, if there are any.
"""

import argparse
import itertools
import random
import re
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gputopo.captures import limited_time, read_bundled, read_bytes, read_text
from gputopo.findings import find
from gputopo.report import document_markdown, inspection_document
from gputopo.values import schema
from gputopo.values.errors import GputopoError
from gputopo.values.finding import Inspection
from gputopo.values.machine import Machine
from tests.captures import samples, test_nccl_log
from tests.kit.dialects import nccl_tests

CAPTURES = Path(__file__).parents[3] / "shared"
LIMIT_S = 0.1  # the goal for every parse
LARGEST = 2**20  # bytes: four times the largest capture; damage may make a text longer
_STRANGE = "\0\ufeff\u202e\ud7ff\x1b[0m\u0661\u00b2|<>&\"'\\\t\r -+X"
_NUMBER = re.compile(r"\d+")


@dataclass(slots=True)
class Outcome:
    """The outcome of all cases: how many were read and refused, and what went wrong, by name."""

    read: int = 0
    refused: int = 0
    wrong: dict[str, str] = field(default_factory=dict)
    given_up: int = 0  # at the limit of gputopo.captures.intake
    slow: int = 0  # over LIMIT_S
    slowest_s: float = 0.0
    slowest: str = ""


def texts(folder: Path = CAPTURES) -> dict[str, bytes]:
    """Return the captures to damage, by name."""
    found = {name: text.encode() for name, text in samples.ALL.items()}
    found["nccl-tests"] = nccl_tests.text(nccl_tests.measure(random.Random(1), "all_reduce")).encode()
    found["nccl log"] = "\n".join(test_nccl_log.ONE_HOST).encode()
    found["recording"] = schema.encode(read_bundled("dgx1-p100"))
    for path in sorted(folder.glob("captures/*/*")) + sorted(folder.glob("thermal/*.throughput.log")):
        if path.name != "index.csv":
            found[f"{path.parent.name}/{path.name}"] = path.read_bytes()
    return found


def _cut(text: bytes, random_: random.Random, _: list[bytes]) -> bytes:
    return text[: random_.randrange(len(text) + 1)]


def _holed(text: bytes, random_: random.Random, _: list[bytes]) -> bytes:
    start = random_.randrange(len(text) + 1)
    return text[:start] + text[start + random_.randrange(1, 200) :]


def _doubled(text: bytes, random_: random.Random, _: list[bytes]) -> bytes:
    start, end = sorted(random_.randrange(len(text) + 1) for _ in range(2))
    return text[:end] + text[start:]


def _shuffled(text: bytes, random_: random.Random, _: list[bytes]) -> bytes:
    lines = text.splitlines(keepends=True)
    random_.shuffle(lines)
    return b"".join(lines)


def _strange(text: bytes, random_: random.Random, _: list[bytes]) -> bytes:
    for _time in range(random_.randrange(1, 6)):
        at = random_.randrange(len(text) + 1)
        text = text[:at] + random_.choice(_STRANGE).encode() + text[at + random_.randrange(2) :]
    return text


def _numbers(text: bytes, random_: random.Random, _: list[bytes]) -> bytes:
    other = random_.choice(["0", "-1", "9" * 30, "1e999", "nan", "4294967295", "\u0663"])
    plain = text.decode(errors="replace")
    places = [match.span() for match in _NUMBER.finditer(plain)]
    if not places:
        return text
    start, end = random_.choice(places)
    return (plain[:start] + other + plain[end:]).encode()


def _encoded(text: bytes, random_: random.Random, _: list[bytes]) -> bytes:
    plain = text.decode(errors="replace")
    return plain.encode(random_.choice(["utf-16", "utf-16-le", "utf-32", "utf-7", "cp500"]), errors="replace")


def _bytes(text: bytes, random_: random.Random, _: list[bytes]) -> bytes:
    changed = bytearray(text)
    for _time in range(random_.randrange(1, 5) if changed else 0):
        changed[random_.randrange(len(changed))] = random_.randrange(256)
    return bytes(changed)


def _spliced(text: bytes, random_: random.Random, others: list[bytes]) -> bytes:
    other = random_.choice(others)
    return text[: random_.randrange(len(text) + 1)] + other[random_.randrange(len(other) + 1) :]


DAMAGES: tuple[Callable[[bytes, random.Random, list[bytes]], bytes], ...] = (
    _cut,
    _holed,
    _doubled,
    _shuffled,
    _strange,
    _numbers,
    _encoded,
    _bytes,
    _spliced,
)


def cases(sources: dict[str, bytes], seed: int) -> Iterator[tuple[str, bytes]]:
    """Yield damaged captures endlessly, each with a name from which it can be generated again."""
    names = sorted(sources)
    others = [sources[name] for name in names]
    for number in itertools.count():
        random_ = random.Random(f"{seed}-{number}")
        name = random_.choice(names)
        text, done = sources[name], []
        for _ in range(random_.choice((1, 1, 1, 2, 3))):
            damage = random_.choice(DAMAGES)
            text = damage(text, random_, others)
            done.append(damage.__name__.strip("_"))
        yield f"seed {seed}, case {number}: {name}, {' and '.join(done)}", text


def impossible(machine: Machine) -> str | None:
    """Return what is impossible in a machine, or None: pairs of unknown GPUs, numbers out of range."""
    gpus = [gpu.index for gpu in machine.gpus]
    if len(set(gpus)) != len(gpus):
        return "two GPUs with one index"
    if strange := [link for link in machine.links if not {link.a, link.b} <= set(gpus)]:
        return f"a link to a GPU that is not there: {strange[0].a}-{strange[0].b}"
    for gpu in machine.gpus:
        pcie = gpu.pcie
        if any(gen is not None and not 0 <= gen <= 7 for gen in (pcie.gen_now, pcie.gen_max)):
            return f"PCIe generation {pcie.gen_now} of {pcie.gen_max}"
        if any(width is not None and not 0 <= width <= 32 for width in (pcie.width_now, pcie.width_max)):
            return f"a link {pcie.width_now} of {pcie.width_max} lanes wide"
    text = schema.encode_pretty(machine)
    return None if read_text(text, origin="again") == machine else "it changes when it is recorded"


def try_one(name: str, data: bytes, outcome: Outcome) -> None:
    """Read one damaged capture and record the outcome."""
    started = time.process_time()
    machine: Machine | None = None
    try:
        with limited_time("damaged"):
            machine = read_bytes(data, origin="damaged")
        outcome.read += 1
    except GputopoError as error:
        outcome.refused += 1
        outcome.given_up += "of CPU time" in error.what
        if "\n" in error.what + error.hint:
            outcome.wrong.setdefault("an error of two lines", name)
    except Exception as error:  # noqa: BLE001 (what this looks for)
        place = traceback.extract_tb(error.__traceback__)[-1]
        outcome.wrong.setdefault(
            f"{type(error).__name__} in {Path(place.filename).name}:{place.lineno}", name
        )
    taken = time.process_time() - started
    outcome.slow += taken > LIMIT_S and len(data) < LARGEST
    if taken > outcome.slowest_s:
        outcome.slowest_s, outcome.slowest = taken, name
    # Recordings are trusted: if one was edited by hand, the editor is responsible.
    ours = data.lstrip().startswith(b"{")
    if machine is not None and not ours and (why := _checked(machine)) is not None:
        outcome.wrong.setdefault(why, name)


def _checked(machine: Machine) -> str | None:
    """Return what is wrong with a machine, its recording, its findings or its report."""
    try:
        found = find(machine)
        document_markdown(inspection_document(Inspection(machine=machine, findings=found)))
        return impossible(machine)
    except Exception as error:  # noqa: BLE001 (what this looks for)
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        return f"{type(error).__name__} when it is judged or recorded ({where}): {str(error)[:80]}"


def run(count: int, seed: int, sources: dict[str, bytes] | None = None) -> Outcome:
    """Try `count` damaged captures."""
    outcome = Outcome()
    # The first parse of a format loads its modules; this time is not due to the text.
    for text in samples.ALL.values():
        read_text(text, origin="sample")
    for name, data in itertools.islice(cases(sources or texts(), seed), count):
        try_one(name, data, outcome)
    return outcome


def main() -> int:
    """Print the outcome of the cases; exit code 1 if anything went wrong or took too long."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    started = time.perf_counter()
    outcome = run(options.cases, options.seed)
    print(f"{options.cases} cases in {time.perf_counter() - started:.0f} s")
    print(f"read: {outcome.read}, refused in words: {outcome.refused}, wrong: {len(outcome.wrong)}")
    print(f"given up after the time limit: {outcome.given_up}")
    print(f"slower than {LIMIT_S * 1000:.0f} ms: {outcome.slow}")
    print(f"slowest: {outcome.slowest_s * 1000:.0f} ms ({outcome.slowest})")
    print(f"peak memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB")
    for why, name in outcome.wrong.items():
        print(f"WRONG: {why} ({name})")
    return 1 if outcome.wrong or outcome.slow or outcome.given_up else 0


if __name__ == "__main__":
    sys.exit(main())
