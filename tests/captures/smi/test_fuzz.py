"""Odd outputs of nvidia-smi: an error in words or a Machine, and soon."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.captures.ledger import Format
from gputopo.captures.smi import csv_table as smi_csv
from gputopo.captures.smi import text as smi_text
from gputopo.captures.smi import xml as smi_xml
from gputopo.values.errors import GputopoError
from gputopo.values.machine import Machine
from tests.captures.smi.test_xml import log

KINDS = {"xml": smi_xml.FORMAT, "text": smi_text.FORMAT, "csv": smi_csv.FORMAT}


def read(module: Format, text: str) -> Machine | GputopoError:
    try:
        return module.parse(text, origin="x")
    except GputopoError as error:
        return error


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(max_size=400))
def test_any_text_is_refused_in_words_or_read(kind: str, text: str) -> None:
    module = KINDS[kind]
    if module.detect(text):
        found = read(module, text)
        assert isinstance(found, Machine) or found.hint


@pytest.mark.parametrize(
    "text",
    [
        "GPU 00000000:01:00.0\n" + " " * 200_000 + ": \n",
        "GPU 00000000:01:00.0\n    Clocks\n" + "        Graphics : 1 MHz\n" * 8_000,
        "==============NVSMI LOG==============\n" + "\t" * 100_000 + "x\n",
        "GPU 00000000:01:00.0\n" + "".join(" " * depth + f"a{depth}\n" for depth in range(700)),
        "nvidia_smi_log" * 20_000,
        "<nvidia_smi_log>" * 20_000 + "</nvidia_smi_log>",
        log("<fan_speed>" + " [deprecated" * 50_000 + "</fan_speed>"),
        "index, name\n" + "0, A\n" * 8_000,
        "name, uuid" + ", uuid" * 20_000 + "\n",
    ],
    ids=lambda text: text[:24],
)
def test_a_text_made_to_be_slow_is_not(text: str) -> None:
    start = time.process_time()
    for module in KINDS.values():
        if module.detect(text):
            found = read(module, text)
            assert isinstance(found, Machine) or found.hint
    assert time.process_time() - start < 5  # what is quadratic takes half a minute
