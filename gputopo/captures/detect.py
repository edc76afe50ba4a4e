"""Which format a text is of, and what it is if it is of none that gputopo reads."""

import functools
import json
import re
from typing import NamedTuple

from gputopo.captures import intake, recording
from gputopo.captures.ledger import Format
from gputopo.values.errors import InputError

_CAPTURE = "use nvidia-smi -q > FILE; nvidia-smi topo -m >> FILE (one file may hold both)"
USE = "use nvidia-smi -q > FILE, or another format: gputopo explain formats lists them"
_OTHER_MAKER = "gputopo supports NVIDIA GPUs only"
_NO_TOPOLOGY = "without links, slots and limits"
_OPTION_ERROR = re.compile(r"^.*ERROR: Option .*$", re.MULTILINE)
_JSON = re.compile(r"\s*(?:\{|\[\s*(?:[\[{\"\]]|-?\d+(?:\.\d+)?\s*,))")  # not `[    0.000000] Linux`


def formats() -> tuple[Format, ...]:
    """Return the formats in the order in which they are tried: the one that is surest of itself first."""
    from gputopo.captures import error_texts, host, kernel_log, nccl_log, tensorflow_log
    from gputopo.captures.bandwidth import network, nvbandwidth, programs
    from gputopo.captures.pci import hwloc_xml, lspci, nccl_xml
    from gputopo.captures.smi import csv_table, dmon, links, overview, topo_matrix, xml
    from gputopo.captures.smi import text as smi_text

    return (
        recording.FORMAT,
        nvbandwidth.FORMAT,
        network.FORMAT,
        xml.FORMAT,
        nccl_xml.FORMAT,
        hwloc_xml.FORMAT,
        programs.FORMAT,
        topo_matrix.FORMAT,
        smi_text.FORMAT,
        overview.FORMAT,
        dmon.FORMAT,
        links.P2P_FORMAT,
        links.NVLINK_FORMAT,
        lspci.TREE_FORMAT,
        lspci.LIST_FORMAT,
        nccl_log.FORMAT,
        tensorflow_log.FORMAT,
        csv_table.FORMAT,
        host.FORMAT,
        host.MODULE_FORMAT,
        error_texts.FORMAT,
        kernel_log.FORMAT,
    )


def format_of(text: str, *, but: Format | None = None) -> Format | None:
    """Return the first format, other than `but`, that recognises a text."""
    if but is None:
        return _first_format(text)
    return next((one for one in formats() if one is not but and one.recognise(text)), None)


@functools.lru_cache(maxsize=1)  # a text that is one section is asked for several times
def _first_format(text: str) -> Format | None:
    if recording.recognise(text):
        return recording.FORMAT  # without loading the others
    return next((one for one in formats() if one.recognise(text)), None)


def sections(text: str) -> list[str]:
    """Return the captures in a text, each as a text with all other lines blank."""
    if text.lstrip().startswith("{"):
        return [text]
    return intake.sections(text, [one.begins for one in formats() if one.begins is not None])


def is_readable(text: str) -> bool:
    """Return whether a text, or a section of it, is of a format."""
    return format_of(text) is not None or any(format_of(one) is not None for one in sections(text))


class Output(NamedTuple):
    """The output of a known tool: a pattern of it, what follows "FILE is", and the remedy."""

    pattern: str
    what: str
    hint: str = _CAPTURE


_KNOWN = (
    Output(
        r"^[ \t]*Link \d+, [\w ]+ supported: (?:true|false)",  # or of an older nvlink option
        "of nvidia-smi nvlink -c, which shows the capabilities of links and not their state",
        "use nvidia-smi nvlink -s > FILE",
    ),
    Output(
        r"^[ \t#>%]*\|\s*NVIDIA-SMI \d|^GPU \d+: .* \(UUID: GPU-",  # without options, or of -L
        f"the overview of nvidia-smi, {_NO_TOPOLOGY}",
    ),
    Output(
        r"ROCm System Management Interface|ROCR?-?SMI|\bAMD-SMI\b|^HSA System Attributes",
        "of AMD's tools, not of NVIDIA GPUs",
        _OTHER_MAKER,
    ),
    Output(
        r"\b(?:npu-smi|xpu-smi|hl-smi|mx-smi|mthreads-gmi|ixsmi|cnmon) v?\d",
        "of another maker's tool, not of NVIDIA GPUs",
        _OTHER_MAKER,
    ),
    Output(
        r"^(?:[^,\n]{1,80}, ){1,60}-?\d[\d.]{0,12} (?:MiB|MHz|W|%)(?:,|\s*$)",
        "of nvidia-smi --query-gpu, without the line that names the columns",
        "capture again with --format=csv (not noheader), and copy all lines",
    ),
    Output(
        r"CUDA Device Query \(|^\|? ?GPU ID +\| Device Information|^\d+ GPUs? found\.$"
        r"|^\[\d+\] .{3,60}\| +\d+(?:'|°)C, +\d+ %|^# ?(?:(?:Date +)?Time +)?gpu +pid",
        f"of deviceQuery, dcgmi, gpustat or nvidia-smi pmon, {_NO_TOPOLOGY}",
    ),
    Output(
        r"^[^\w\n]{0,20}(?:Client connecting to \S{1,255},|Server listening on) (?:TCP|UDP) port \d"
        r"|^[^\w\n]{0,20}\[ ID\](?:\[Role\])? Interval +Transfer +B|\biperf Done\.|\biperf3: error - ",
        "the text of iperf, of which gputopo reads the JSON of iperf3",
        "use iperf3 -J > FILE",
    ),
    Output(
        r"^# OSU \S+ .{0,80}\bTest\b|^# OSU MPI|\|\s*bandwidth \(MB/s\)\s*\|\s*message rate"
        r"|^(?:rc|uc|ud|tcp|udp|rds|sdp|ver)_\w{2,40}:$",
        "of an OSU benchmark, qperf or ucx_perftest, which gputopo does not read",
        "use ib_write_bw or iperf3 -J > FILE, or measure: gputopo bandwidth --network",
    ),
    Output(
        r"^CA:? '|^Infiniband device '|^hca_id:|^(?:CA|Switch): .{1,120}:$"
        r"|^# Port (?:extended )?counters: Lid|^Troubleshooting Info$|^Operational Info$"
        r"|^Settings for \S{1,32}:|^\S{1,32}: flags=\d+<[A-Z,]*>"
        r"|^\s{0,4}(?:RX|TX): +bytes +packets|^link \S+/\d+ .*\bphysical_state ",
        "of a tool that shows network ports, which gputopo does not read",
        "use gputopo inspect on that host: it reads its network cards and ports",
    ),
    Output(
        r"^[ \t]*<graphs\b",
        "NCCL's choice of rings and trees (NCCL_GRAPH_DUMP_FILE), and not the machine",
        "use the file that NCCL_TOPO_DUMP_FILE names",
    ),
    Output(
        r"\bNCCL INFO ",
        "a log of NCCL that shows no GPU and no path",
        "give the whole log of a run with NCCL_DEBUG=INFO, or the file that NCCL_TOPO_DUMP_FILE names",
    ),
)


def known_output(text: str) -> Output | None:
    """Return the known tool whose output a text is, if any."""
    return next((one for one in _KNOWN if re.search(one.pattern, text, re.MULTILINE)), None)


def refusal(text: str, *, origin: str) -> InputError:
    """Return the error for a text that no format recognises."""
    if option := _OPTION_ERROR.search(text):
        return InputError(f"{origin} is an error text of nvidia-smi: {option[0].strip()[:120]}", _CAPTURE)
    if output := known_output(text):
        return InputError(f"{origin} is {output.what}", output.hint)
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
