"""From the bytes of a file to the captures in it.

Compressed files are unpacked, bytes become `decoded` text, its lines `clean`, and each capture one of the
`sections`. Every step keeps the line numbers.
"""

import bz2
import functools
import gzip
import html
import io
import itertools
import lzma
import re
import textwrap
import zlib
from collections.abc import Callable, Mapping, Sequence

from gputopo.values.errors import InputError

_UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")  # as PowerShell redirects
# Bytes that no text has: control characters except tab, line ends, form feed, escape and Ctrl-Z.
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0e-\x19\x1c-\x1f]")
_MAX_UNKNOWN = 0.05  # share of letters. Not measured; chosen because a name or path in a code page has few.

_LINE_END = re.compile(r"\r*\n|\r")
# ECMA-48: CSI and OSC sequences, character sets and single functions; also if a page shows the escape
# character, or lost it before a color.
_ESCAPE = re.compile(
    r"(?:\x1b|\^\[|\\x1b|\\033|\\e|\\u001b)"
    r"(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[()][A-Z0-9]|[=>78DEHMZc])"
    r"|\[\d{1,2}(?:;\d{1,3}){0,4}m(?:\[K)?|\[m\[K"
)
_ESCAPED = ("\x1b", "^[", "\\x1b", "\\033", "\\e[", "\\u001b", "[0m", "[m[K")
_ENTITY = re.compile(r"&(?:[lg]t|amp|quot|nbsp|#\d{1,4});")
_TAG = re.compile(r"^[ \t]*<", re.MULTILINE)
# Tags of web pages that no capture in XML has.
_PAGE = re.compile(
    r"</?(?:html|body|pre|code|br|p|div|span|font|blockquote)(?=[\s/>])[^<>\n]{0,200}>", re.IGNORECASE
)
# No table repeats a character so often: many patterns would start at each of them.
_MAX_RUN = 256
_RUNS = tuple(character * _MAX_RUN for character in " \t|<>,=#.:;-+*()\"'/\\")
_RUN = re.compile(r"([^\w\n\[{])\1{255,}")
_CONTINUED = re.compile(r"(?:(?<=\S)[ \t]+\\|[ \t]*[\u2502\u2503])$", re.MULTILINE)  # Markdown; a border
_ENDS = ("\\\n", "\u2502\n", "\u2503\n")
_INVISIBLE = re.compile("[\u200b-\u200d\u2060\ufeff]")  # zero-width characters of web pages and chats
_STRING = re.compile(r'^[ \t]*"((?:[^"\\\n]|\\["\\t])*)",?(?=[ \t]*$)', re.MULTILINE)  # Ansible's lists
_DIFF = re.compile(r"\s*(?:diff --git |Index: |--- \S.*\n\+\+\+ |@@ -\d)")
_QUOTED = re.compile(r"^[ \t]*>(?: ?>)*(?: |$)", re.MULTILINE)  # a line of an email or a comment
_QUOTATION = re.compile(rf"(?:{_QUOTED.pattern}[^\n]*\n?){{3,}}", re.MULTILINE)
_MIN_LINES = 3  # with fewer lines, a prefix may be part of the text
_MAX_PREFIXES = 4  # prefixes of one line: a margin, a time, a host, a quotation
_MAX_HOSTS = 64
_HOSTS_SHOWN = 4

# Prefixes of container runtimes, CI services, loggers or syslog, except the prefixes of the kernel and the
# fabric manager. TensorFlow's own lines have a colon after their time.
_LEVEL = r"\[?(?:DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR)\]?"
_PLACE = r"(?:\[[\w./-]{1,80}:\d{1,6}\]|\{[\w./-]{1,80}:\d{1,6}\}):?"
_TIME = re.compile(
    rf"(?!.{{0,80}}(?:kernel|fabricmanager)\S{{0,24}}:|\S{{19}},\d{{6}}[+-])(?:{_LEVEL}[ \t|-]+)?(?:"
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S{1,64} \S{1,64}:"
    r"|\[(?:\d{4}-\d\d-\d\d[T ])?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\]"
    r"|(?:\d\d-\d\d )?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)"
    rf"(?: std(?:out|err) [FP])?(?:[ \t|-]+{_PLACE})?"
    rf"(?:[ \t|-]+{_LEVEL}(?:[ \t|-]+{_PLACE}|[ ]*[:|-])?)?(?:[ \t]|$)"
)
_NUMBER = re.compile(r"[ \t]*(\d{1,6})[:.|)]?(?:[ \t]|$)")  # line numbers of cat -n and editors
# Prefix of mpirun --tag-output (with the host and process, or the whole name of the job) and horovodrun.
RANK_MARK = r"\[[\w.@-]{1,100}(?:,\d{1,6})?\](?:\[[\w.:-]{1,100}\])?<std(?:out|err)>:"
# Prefixes of pdsh, clush, srun -l, torchrun, kubectl logs --prefix, stern, docker compose, Ray, emails,
# comments.
_ORIGIN = re.compile(
    rf"(?:{RANK_MARK}|(?!NVRM:|nvidia-)\[?[\w.-]{{1,64}}\]?:(?: |$)|\[default\d{{1,5}}\]:"
    rf"|{_LEVEL}:\w{{1,40}}:|\[(?!\d+\.\d{{6}}\])[\w.-]+(?:/[\w.-]+){{0,3}}\](?: |$)"
    r"|[\w.-]{1,64} +\|(?: |$)|(?:[>#%;]|//) ?|[+\u2502\u2503]"
    r"|\(\w{1,64} pid=\d{1,9}(?:, ip=[\w.:]{1,45})?\)(?: |$)"
    r"|[a-z0-9]{1,64}(?:-[a-z0-9]{1,64}){1,12} [a-z0-9-]{1,64}(?: |$))"
)
_ONE_RUN = re.compile(r"\bnThread \d+ nGpus \d+ |\balgbw +busbw\b")  # nccl-tests over all its ranks
_HOST = re.compile(r"\[.*|[\w.-]+\d[\w.-]*:|\d+:")

# A whole document of a tool that writes XML, with what may be before its first element.
_DOCUMENT = re.compile(
    r"^[ \t]*(?:<\?xml[^>]*\?>\s*)?(?:<!DOCTYPE[^>]*>\s*)?(?:<!--(?:(?!-->).)*-->\s*)*"
    r"<(nvidia_smi_log|topology|system)\b.*?</\1>[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
_LINES_AHEAD = 3  # lines after one that may start a capture


Begins = Callable[[Sequence[str]], bool]  # whether the first line starts an output; no line is blank


def decoded(data: bytes) -> str | None:
    """Return the text in UTF-8, UTF-16 with its mark, or a code page; None for binary data.

    Letters of a code page become U+FFFD, because the code page is unknown.
    """
    try:
        text = data.decode("utf-16") if data[:2] in _UTF_16_MARKS else data.decode("utf-8-sig")
    except UnicodeDecodeError:
        if data[:2] in _UTF_16_MARKS or _CONTROL.search(data):
            return None
        text = data.decode("utf-8", errors="replace")
        return text if text.count("\ufffd") <= _MAX_UNKNOWN * len(text) else None
    return text if "\0" not in text else None


def clean(text: str, *, origin: str) -> str:
    """Return a text without what terminals, logs, pages and chats add to it; each line keeps its number.

    Raises InputError for a diff, and if the lines are from several machines or ranks.
    """
    if _DIFF.match(text):
        raise InputError(f"{origin} is a diff of two texts", "give each text as a separate file")
    text = _LINE_END.sub("\n", text) if "\r" in text else text
    if any(mark in text for mark in _ESCAPED):
        text = _ESCAPE.sub("", text)
    if not text.isascii():
        text = _INVISIBLE.sub("", text).replace("\xa0", " ")
    if any(run in text for run in _RUNS):
        text = _RUN.sub(lambda run: run[1] * _MAX_RUN, text)
    text = _PAGE.sub("", text)
    if _ENTITY.search(text) and not _TAG.search(text):
        text = html.unescape(text).replace("\xa0", " ")
    if any(end in text for end in _ENDS) and len(_CONTINUED.findall(text)) >= _MIN_LINES:
        text = _CONTINUED.sub("", text)
    if 2 * len(_STRING.findall(text)) > max(2 * _MIN_LINES, len(_filled(text))):
        text = _STRING.sub(lambda match: re.sub(r"\\(.)", r"\1", match[1].replace("\\t", "\t")), text)
    text = _QUOTATION.sub(lambda block: _QUOTED.sub("", block[0]), text)
    for _ in range(_MAX_PREFIXES):
        bare = _without_prefix(text)
        if bare is None:
            break
        text = bare
    _refuse_several_hosts(text, origin)
    return text


def _without_prefix(text: str) -> str | None:
    """Remove one prefix from all lines; returns None if they have no prefix in common."""
    filled = _filled(text)
    if len(filled) < _MIN_LINES:
        return None
    # All lines start with a tab or two spaces; some tools put one space before a table.
    if filled[0].startswith(("\t", "  ", " \t")):
        first = textwrap.dedent("\n".join(filled)).split("\n", 1)[0]
        if len(filled[0]) - len(first) > (0 if filled[0].startswith("\t") else 1):
            return textwrap.dedent(text)
    for prefix, fit in _PREFIXES:
        matches = [*itertools.takewhile(bool, map(prefix.match, filled))]
        if len(matches) == len(filled) and fit([match[0] for match in matches if match]):
            return "\n".join(prefix.sub("", line, count=1) for line in text.split("\n"))
    return None


def _filled(text: str) -> list[str]:
    return [line for line in text.split("\n") if line.strip()]


def _are_counted(prefixes: Sequence[str]) -> bool:
    """Return whether the lines are numbered one by one, from 1 or higher. (Rows of a matrix start at 0.)"""
    numbers = [int(prefix.strip(" \t:.|)")) for prefix in prefixes]
    return numbers[0] > 0 and numbers == [*range(numbers[0], numbers[0] + len(numbers))]


# Each prefix, with the condition for the prefixes of all lines.
_PREFIXES: tuple[tuple[re.Pattern[str], Callable[[Sequence[str]], bool]], ...] = (
    (_TIME, bool),
    (_NUMBER, _are_counted),
    (_ORIGIN, lambda prefixes: len({prefix.rstrip() for prefix in prefixes}) == 1),
)


def _refuse_several_hosts(text: str, origin: str) -> None:
    """Raise InputError if the lines are from several hosts, each with many lines."""
    filled = _filled(text)
    if not filled or _ORIGIN.match(filled[0]) is None or _ONE_RUN.search(text):
        return
    prefixes = [match[0].rstrip() if (match := _ORIGIN.match(line)) else "" for line in filled]
    hosts = list(dict.fromkeys(prefixes))
    if not 1 < len(hosts) <= _MAX_HOSTS or not all(map(_HOST.fullmatch, hosts)):
        return
    counts = [prefixes.count(host) for host in hosts]
    if min(counts) < max(_MIN_LINES, max(counts) // 2):
        return
    shown = [host.rstrip(":") for host in hosts[:_HOSTS_SHOWN]] + ["..."] * (len(hosts) > _HOSTS_SHOWN)
    raise InputError(
        f"{origin} mixes the lines of several hosts: {', '.join(shown)}",
        f"select one machine: grep '^{hosts[0]}' FILE | gputopo ... --from -",
    )


def sections(text: str, formats: Sequence[Begins]) -> list[str]:
    """Return a text for each XML document and each format, with all other lines blank.

    Prose between two captures belongs to the capture above. A text with one capture is returned unchanged.
    """
    documents = ["\n" * text.count("\n", 0, match.start()) + match[0] for match in _DOCUMENT.finditer(text)]
    rest = _DOCUMENT.sub(lambda match: "\n" * match[0].count("\n"), text)
    lines = rest.splitlines()
    owners = _owners(lines, formats)
    end = "\n" if text.endswith("\n") else ""
    by_format = [
        "\n".join(line if owner is kind else "" for line, owner in zip(lines, owners, strict=True)) + end
        for kind in formats
        if kind in owners
    ]
    return [*documents, *by_format] if documents or len(by_format) > 1 else [text]


def _owners(lines: Sequence[str], formats: Sequence[Begins]) -> list[Begins | None]:
    """Return the format of the output that each line is in or below."""

    @functools.lru_cache(maxsize=4096)  # outputs of a loop repeat their lines
    def begun(ahead: tuple[str, ...]) -> Begins | None:
        return next((kind for kind in formats if kind(ahead)), None)

    filled = [number for number, line in enumerate(lines) if line.strip()]
    owners: list[Begins | None] = [None] * len(lines)
    owner: Begins | None = None
    for place, number in enumerate(filled):
        owner = begun(tuple(lines[below] for below in filled[place : place + 1 + _LINES_AHEAD])) or owner
        owners[number] = owner
    return owners


_PACKED: Mapping[bytes, tuple[str, Callable[[io.BytesIO], io.BufferedIOBase]]] = {
    b"\x1f\x8b": ("gzip", lambda file: gzip.GzipFile(fileobj=file)),
    b"BZh": ("bzip2", bz2.BZ2File),
    b"\xfd7zXZ\x00": ("xz", lzma.LZMAFile),
    b"": ("", lambda file: file),  # not compressed
}
_TAR = slice(257, 262)


def unpacked(data: bytes, *, origin: str, max_bytes: int) -> bytes:
    """Return the content of a compressed file, with all its members (`gzip -c a b`, logrotate) joined.

    Data that is not compressed is returned unchanged. Raises InputError if the content is longer than
    `max_bytes` (before more is unpacked), if the file is damaged or cut, and for an archive of several files
    (tar).
    """
    kind, opened = next(of for magic, of in _PACKED.items() if data.startswith(magic))
    hint = f"copy the file again, or unpack it ({kind} -d) and give the text"
    try:
        content = opened(io.BytesIO(data)).read(max_bytes + 1) if kind else data
    except EOFError as error:
        raise InputError(f"{origin} is a {kind} file that is cut short", hint) from error
    except (zlib.error, OSError, lzma.LZMAError) as error:
        raise InputError(f"{origin} is a damaged {kind} file: {error}", hint) from error
    if kind and len(content) > max_bytes:
        raise InputError(f"{origin} is larger than {max_bytes >> 20} MiB unpacked", "give only the capture")
    if content[_TAR] == b"ustar":
        raise InputError(
            f"{origin} is an archive", "unpack it (tar -xf FILE), and give the folder or a file in it"
        )
    return content
