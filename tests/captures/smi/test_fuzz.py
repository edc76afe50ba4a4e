"""Broken outputs of nvidia-smi: an error in words or a Machine, and no number that the text does not have."""

import random
import re
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.captures.ledger import Format
from gputopo.captures.smi import csv_table as smi_csv
from gputopo.captures.smi import text as smi_text
from gputopo.captures.smi import xml as smi_xml
from gputopo.values.errors import GputopoError
from gputopo.values.machine import Machine
from tests.captures.smi.test_text import BOX
from tests.captures.smi.test_xml import log
from tests.captures.smi_numbers import made_up

CAPTURES = Path(__file__).parents[4] / "shared" / "captures"
KINDS: dict[str, tuple[Format, str]] = {
    "xml": (smi_xml.FORMAT, "smi_xml*/*.xml"),
    "text": (smi_text.FORMAT, "smi_text/*.txt"),
    "csv": (smi_csv.FORMAT, "other/query-gpu-csv*.txt"),
}
OWN = {
    "xml": log(
        "<uuid>GPU-8f6a3c1e-1234-4b1f-9d1c-2f3a4b5c6d7e</uuid>\n<fan_speed>30 %</fan_speed>\n"
        "<fb_memory_usage>\n<total>4095 MiB</total>\n<used>11 MiB</used>\n</fb_memory_usage>\n"
        "<clocks>\n<graphics_clock>324 MHz</graphics_clock>\n<mem_clock>405 MHz</mem_clock>\n</clocks>\n"
        "<processes>\n<process_info>\n<pid>77</pid>\n<used_memory>5 MiB</used_memory>\n</process_info>\n"
        "</processes>",
        "<product_name>Tesla T4</product_name>\n"
        "<temperature>\n<gpu_temp>GPU is lost</gpu_temp>\n</temperature>",
    ),
    "text": BOX,
    "csv": "index, name, memory.total [MiB], clocks.sm [MHz]\n"
    "0, A, 4095 MiB, 300 MHz\n1, B, 8192 MiB, 1 MHz\n",
}


@cache
def samples(kind: str) -> list[str]:
    found = sorted(CAPTURES.glob(KINDS[kind][1]))
    return [OWN[kind], *(path.read_text(encoding="utf-8") for path in found)]


def cut(lines: list[str], dice: random.Random) -> str:
    text = "".join(lines)
    return text[: dice.randrange(len(text))]


def beheaded(lines: list[str], dice: random.Random) -> str:
    text = "".join(lines)
    return text[dice.randrange(len(text)) :]


def doubled(lines: list[str], dice: random.Random) -> str:
    return "".join(line for line in lines for _ in range(1 + (dice.random() < 0.1)))


def thinned(lines: list[str], dice: random.Random) -> str:
    return "".join(line for line in lines if dice.random() < 0.9)


def shuffled(lines: list[str], dice: random.Random) -> str:
    mixed = lines[:]
    dice.shuffle(mixed)
    return "".join(mixed)


def swapped(lines: list[str], dice: random.Random) -> str:
    mixed = lines[:]
    for _ in range(5):
        a, b = dice.randrange(len(mixed)), dice.randrange(len(mixed))
        mixed[a], mixed[b] = mixed[b], mixed[a]
    return "".join(mixed)


def scrambled(lines: list[str], dice: random.Random) -> str:
    letters = list("".join(lines))
    for _ in range(20):
        letters[dice.randrange(len(letters))] = dice.choice("\t\n <>/&:;,.[]=0xé\u0660\u200b'\"-")
    return "".join(letters)


def misread(lines: list[str], dice: random.Random) -> str:
    encoding = dice.choice(["latin-1", "cp1252", "cp437", "utf-16-le"])
    return ("é" + "".join(lines)).encode("utf-8").decode(encoding, errors="replace")


def unindented(lines: list[str], dice: random.Random) -> str:
    return "".join(line.lstrip(" \t") for line in lines)


def leaves_thinned(lines: list[str], dice: random.Random) -> str:
    """Leave out whole values, so that XML stays XML."""
    return "".join(line for line in lines if not _LEAF.search(line) or dice.random() < 0.8)


def leaves_shuffled(lines: list[str], dice: random.Random) -> str:
    """Return the values of the elements to one another."""
    values = [found[1] for line in lines if (found := _LEAF.search(line))]
    dice.shuffle(values)
    waiting = iter(values)
    return "".join(_LEAF.sub(lambda _: f">{next(waiting)}</", line, count=1) for line in lines)


_LEAF = re.compile(r">([^<>\n]+)</")

BREAKS: list[Callable[[list[str], random.Random], str]] = [
    *(cut, beheaded, doubled, thinned, shuffled, swapped, scrambled, misread, unindented),
    *(leaves_thinned, leaves_shuffled),
]


def read(module: Format, text: str) -> Machine | GputopoError:
    try:
        return module.parse(text, origin="x")
    except GputopoError as error:
        return error


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_a_broken_output_gives_an_error_or_only_what_it_states(kind: str, data: st.DataObject) -> None:
    module = KINDS[kind][0]
    text = data.draw(st.sampled_from(samples(kind)), label="sample")
    dice = random.Random(data.draw(st.integers(0, 2**32), label="seed"))
    for break_it in data.draw(st.lists(st.sampled_from(BREAKS), min_size=1, max_size=2), label="breaks"):
        text = break_it(text.splitlines(keepends=True) or ["\n"], dice) or "\n"
    module.recognise(text)
    machine = read(module, text)
    if isinstance(machine, GputopoError):
        assert "\n" not in machine.what
        return
    assert [gpu.index for gpu in machine.gpus] == sorted({gpu.index for gpu in machine.gpus})
    if break_it is not misread:
        assert made_up(machine, text) == []


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(max_size=400))
def test_any_text_is_refused_in_words_or_read(kind: str, text: str) -> None:
    module = KINDS[kind][0]
    if module.recognise(text):
        found = read(module, text)
        assert isinstance(found, Machine) or found.hint


@pytest.mark.parametrize(
    "text",
    [
        "GPU 00000000:01:00.0\n" + " " * 200_000 + ": \n",
        "GPU 00000000:01:00.0\n    Clocks\n" + "        Graphics : 1 MHz\n" * 20_000,
        "==============NVSMI LOG==============\n" + "\t" * 100_000 + "x\n",
        "GPU 00000000:01:00.0\n" + "".join(" " * depth + f"a{depth}\n" for depth in range(1500)),
        "nvidia_smi_log" * 20_000,
        "<nvidia_smi_log>" * 20_000 + "</nvidia_smi_log>",
        log("<fan_speed>" + " [deprecated" * 50_000 + "</fan_speed>"),
        "index, name\n" + "0, A\n" * 20_000,
        "name, uuid" + ", uuid" * 20_000 + "\n",
    ],
    ids=lambda text: text[:24],
)
def test_a_text_made_to_be_slow_is_not(text: str) -> None:
    start = time.process_time()
    for module, _ in KINDS.values():
        if module.recognise(text):
            found = read(module, text)
            assert isinstance(found, Machine) or found.hint
    assert time.process_time() - start < 5  # what is quadratic takes half a minute


@pytest.mark.parametrize("path", sorted(CAPTURES.glob("smi_text/*.txt")), ids=lambda path: path.name)
def test_a_capture_that_lost_its_indentation_shows_the_same(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    flat = smi_text.parse(unindented(text.splitlines(keepends=True), random.Random(0)), origin="x")
    assert flat.gpus == smi_text.parse(text, origin="x").gpus
    assert flat.unread == ()
