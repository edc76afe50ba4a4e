"""Odd outputs of nvidia-smi: an error in words or a Machine, and soon."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.captures import limited_time, read_text
from gputopo.values.errors import GputopoError
from gputopo.values.machine import Machine
from tests.captures.smi.test_xml import log

# What makes a text one of nvidia-smi, so that its readers have the rest.
HEADS = (
    "",
    "==============NVSMI LOG==============\n",
    "GPU 00000000:01:00.0\n    Clocks\n",
    "index, name\n0, A\n",
    "<nvidia_smi_log>",
    "\tGPU0\tGPU1\nGPU0\t X \tPIX\n",
    "| NVIDIA-SMI 550.54.15 |\n",
    "# gpu    pwr\n",
)


def is_read_or_refused(text: str) -> bool:
    try:
        return isinstance(read_text(text, origin="x"), Machine)
    except GputopoError as error:
        return bool(error.hint)


@given(st.sampled_from(HEADS), st.text(max_size=400), st.booleans())
def test_any_text_is_refused_in_words_or_read(head: str, text: str, below: bool) -> None:
    assert is_read_or_refused(head + text if below else text + head)


@pytest.mark.parametrize(
    "text",
    [
        "GPU 00000000:01:00.0\n" + " " * 60_000 + ": \n",
        "GPU 00000000:01:00.0\n" + "".join(" " * depth + f"a{depth}\n" for depth in range(500)),
        "<nvidia_smi_log>" * 10_000 + "</nvidia_smi_log>",
        log("<fan_speed>" + " [deprecated" * 20_000 + "</fan_speed>"),
        "name, uuid" + ", uuid" * 10_000 + "\n",
    ],
    ids=lambda text: text[:24],
)
def test_a_text_made_to_be_slow_is_not(text: str) -> None:
    with limited_time("x", 2):  # what is quadratic takes several times as long
        assert is_read_or_refused(text)
