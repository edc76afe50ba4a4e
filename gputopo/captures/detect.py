"""Detects the format of a text, and identifies known outputs that gputopo does not read."""

import functools
import json
import re

from gputopo.captures import intake, recording
from gputopo.captures.ledger import Format
from gputopo.values.errors import InputError
from gputopo.values.fields import rows_of

_CAPTURE = "use nvidia-smi -q > FILE; nvidia-smi topo -m >> FILE (one file may hold both)"
USE = "use nvidia-smi -q > FILE, or another format: gputopo explain formats lists them"
_OPTION_ERROR = re.compile(r"^.*ERROR: Option .*$", re.MULTILINE)
_JSON = re.compile(r"\s*(?:\{|\[\s*(?:[\[{\"\]]|-?\d+(?:\.\d+)?\s*,))")  # not `[    0.000000] Linux`


def formats() -> tuple[Format, ...]:
    """Return the formats in the order in which they are tried, the most specific first."""
    from gputopo.captures import host, kernel_log, kernel_module, nccl_log, tensorflow_log
    from gputopo.captures.bandwidth import network, nvbandwidth, programs
    from gputopo.captures.pci import lspci_list, lspci_tree, nccl_xml
    from gputopo.captures.smi import csv_table, dmon, nvlink, overview, p2p, topo_matrix, xml
    from gputopo.captures.smi import text as smi_text

    return (
        recording.FORMAT,
        nvbandwidth.FORMAT,
        network.FORMAT,
        xml.FORMAT,
        nccl_xml.FORMAT,
        programs.FORMAT,
        topo_matrix.FORMAT,
        smi_text.FORMAT,
        overview.FORMAT,
        dmon.FORMAT,
        p2p.FORMAT,
        lspci_tree.FORMAT,
        lspci_list.FORMAT,
        nccl_log.FORMAT,
        tensorflow_log.FORMAT,
        csv_table.FORMAT,
        nvlink.FORMAT,
        host.FORMAT,
        kernel_module.FORMAT,
        kernel_log.FORMAT,
    )


def format_of(text: str, *, but: Format | None = None) -> Format | None:
    """Return the first format, other than `but`, that recognizes a text."""
    if but is None:
        return _first_format(text)
    return next((kind for kind in formats() if kind is not but and kind.detect(text)), None)


@functools.lru_cache(maxsize=1)  # a text with one section is detected several times
def _first_format(text: str) -> Format | None:
    if recording.detect(text):
        return recording.FORMAT  # the other formats are not loaded
    return next((kind for kind in formats() if kind.detect(text)), None)


def sections(text: str) -> list[str]:
    """Return the captures in a text, each as the text with all other lines blank."""
    if text.lstrip().startswith("{"):
        return [text]
    return intake.sections(text, [kind.begins for kind in formats() if kind.begins is not None])


def is_readable(text: str) -> bool:
    """Return whether a text, or a section of it, has a known format."""
    return format_of(text) is not None or any(format_of(section) is not None for section in sections(text))


def known_output(text: str) -> dict[str, str] | None:
    """Return the row of `known_outputs.csv` whose pattern matches: `what` the text is, and the `hint`."""
    for row in rows_of(__file__, "known_outputs.csv"):
        if re.search(row["pattern"], text, re.MULTILINE):
            return row
    return None


def refusal(text: str, *, origin: str) -> InputError:
    """Return the error for a text of no known format."""
    if option := _OPTION_ERROR.search(text):
        return InputError(f"{origin} is an error text of nvidia-smi: {option[0].strip()[:120]}", _CAPTURE)
    if output := known_output(text):
        return InputError(f"{origin} is {output['what']}", output["hint"])
    if _JSON.match(text):
        try:
            json.loads(text)
        except RecursionError:
            return InputError(f"{origin} is JSON that is nested too deep", USE)
        except ValueError as wrong:
            hint = "copy the file again, or write it again with gputopo"
            return InputError(f"{origin} is not complete JSON: {wrong}", hint)
        return InputError(f"{origin} is JSON, but not of gputopo", USE)
    return InputError(f"{origin} is in an unknown format", USE)
