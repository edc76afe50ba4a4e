"""The text of NVIDIA's nccl-tests of all versions, whole or any part of it: text in, Machine out.

Lines may be mixed with lines of NCCL_DEBUG=INFO and have prefixes from mpirun or srun. The number of columns
identifies a row's columns: size, count, type, operator and root if the program has them, then time, algorithm
bandwidth, bus bandwidth and errors, out of place and in place. Rows whose numbers contradict each other are
not understood. `nccl_tests_runs` makes the machine.
"""

import re
from pathlib import PurePath

from gputopo.captures import nccl_log
from gputopo.captures.bandwidth import nccl_tests_runs as runs
from gputopo.captures.bandwidth.nccl_tests_runs import NcclRow, NcclRun, Rank, Timed
from gputopo.captures.bandwidth.texts import Program, ProgramRead, understood_of
from gputopo.captures.intake import RANK_MARK
from gputopo.values.errors import InputError

SOURCE = runs.SOURCE

_PROGRAMS = "|".join(sorted(runs.KINDS, key=len, reverse=True))
_TYPES = r"(?:u?int(?:8|32|64)?|char|half|float|double|bfloat16|f8e4m3|f8e5m2|fp8_e4m3|fp8_e5m2)"
_GAP = r"[ \t,;|]{1,64}"
_MARKS = re.compile(
    r"\bout-of-place\b[^\n]{0,80}\bin-place\b|\balgbw\s+busbw\b|\bAvg bus bandwidth\s*:"
    r"|^[^\w\n]{0,20}nThreads?:? \d+ nGpus:? \d+ minBytes"
    r"|\bCollective test (?:starting|concluded): |\bTest (?:NCCL|CUDA) failure \S+:\d+"
    rf"|^[^\w\n]{{0,20}}\d{{1,15}}{_GAP}\d{{1,15}}{_GAP}{_TYPES}{_GAP}(?:\w+{_GAP})?(?:-?\d+{_GAP})?"
    rf"\d+(?:\.\d+)?(?:e\+\d\d)?{_GAP}\d+\.\d\d\b",
    re.MULTILINE,
)
# One of these is in each such line: a long log is searched for them first.
_WORDS = (
    "in-place",
    "algbw",
    "Avg bus",
    "nThread",
    "Collective test",
    " failure ",
    "float",
    "half",
    "double",
    "char",
    "int",
    "f8e",
    "fp8",
)
# mpirun --tag-output, srun --label, MPI launchers with the host's name, a date.
_PREFIX = re.compile(
    rf"^(?:{RANK_MARK} ?|(?:[\w.-]{{1,64}} )?\d{{1,5}}:(?: |$)"
    r"|\[\d{1,5}\](?= |#|$)|\d{4}-\d\d-\d\d[T ]\S{8,20} "
    r"|\[?[\w.-]{1,64}\]?: ?(?=#| {3,}\d))"
)
_PROGRAM = re.compile(rf"(?<![A-Za-z_])({_PROGRAMS})_(?:perf|test)(?![A-Za-z0-9]|\.cu)")
_CONCLUDED = re.compile(rf"^Collective test (starting|concluded): \S{{0,200}}?({_PROGRAMS})_perf")
_HEAD = re.compile(r"^(?:nThreads?:? (\d{1,6}) )?nGpus(?:\(perProc\))?:? (\d{1,6}) minBytes:? ")
_RANK = re.compile(
    r"^Rank +(\d{1,6})(?: +Group +(\d{1,6}))?(?: +Pid +\d{1,10})?(?: +(?:on|uses))?"
    r"(?: +(?!device\b)(\S{1,255}))? +device +(\d{1,4})(?: +\[(?:0x)?([0-9a-fA-F:.]{1,16})\])?"
    r" +(\S.{0,119})$",
    re.ASCII,
)
_COLUMNS = re.compile(r"^size +count +type\b(.*)$")
_ROW = re.compile(rf"^(\d{{1,16}}) +(\d{{1,16}}) +({_TYPES}) +(.+)$", re.ASCII)
# Separators of cells; launchers put the rank's mark before each write.
_BETWEEN = re.compile(rf"{RANK_MARK}|\[\d{{1,5}}\]|[,;|\t]")
# A row that NCCL's log interrupts: the rest of the row is on a separate line.
_BEGUN = re.compile(
    rf"^(\d{{1,16}} +\d{{1,16}} +{_TYPES}(?: +[a-z]\w{{1,15}})?(?: +-?\d{{1,5}})?) *"
    r"(?=[A-Za-z][\w.-]{0,255}:\d+:\d+ \[)"
)
_REST = re.compile(r"[\d.e+ /NA]+\Z")
_OPERATOR = re.compile(r"[a-z][a-z0-9]{1,15}\Z")
_NUMBER = re.compile(r"\d{1,12}(?:\.\d{1,6})?(?:e[+-]?\d{1,2})?\Z", re.ASCII)
_ROOT = re.compile(r"-?\d{1,5}\Z", re.ASCII)
_STAMP = re.compile(r" +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$")
_OUT_OF_BOUNDS = re.compile(r"^Out of bounds values *: (\d{1,12}) (?:OK|FAILED)$", re.ASCII)
_AVERAGE = re.compile(r"^Avg bus bandwidth *: (\S{1,20})(?: +GB/s)?(?: +(OK|FAILED))?$")
_FAILED = re.compile(r"^\S{0,255}:? ?Test (NCCL|CUDA) failure \S{1,200}:\d{1,6}\b(.{0,500})$")
_TIMEOUT = re.compile(r"^\S{1,255}: Test timeout \((\d{1,9})s\) \S{1,200}:\d{1,6}$")
_LAST_ERROR = re.compile(r"^error: (\S.{0,500})$")
_UNWOUND = re.compile(r"^\.\. \S{1,255} pid \d+: Test failure \S{1,200}:\d{1,6}$")
_REASONS = {"NCCL": "NCCL_ERROR", "CUDA": "CUDA_ERROR"}
_LIBRARY = re.compile(r"^nccl-tests version \S{1,20} nccl-headers=\d{1,8} nccl-library=(\d{4,6})$")
_PROSE = re.compile(
    r"^(?:Using devices|\(B\).*|out-of-place\b.*|(?:Blocking|Parallel Init|Swap Comms) Enabled.*"
    r"|Per-Iteration Report:.*|Reducing maxBytes to \d+.*|Writing JSON output to .*|GPU memory usage *:.*"
    r"|Base Copy BW *:.*|NCCL Tests compiled with NCCL \S+|Errors with asterisks indicate errors.*"
    r"|nccl-tests version .*|NCCL_TESTS_\w+.*|rank=\d+ send_bytes=.*|invalid option.*|\.\.\.)$"
)
_RCCL = re.compile(r"\brccl-tests: Version\b|\b(?:RCCL|HIP) version\b", re.IGNORECASE)
_AMD = re.compile(r"\b(?:AMD|Radeon|Instinct|gfx\d+)\b", re.IGNORECASE)
_PER_HALF = (3, 4, 5, 8)  # columns of a half: without errors, with, with simultaneous copies, by iteration


def program_of(line: str) -> str | None:
    """Return the program that a command line starts, without `_perf`."""
    match = _PROGRAM.search(line)
    return match[1] if match else None


def version_of(code: int) -> str:
    """Return NCCL's version from its number, 22807 or, up to 2.8, 2708."""
    major = 10_000 if code >= 10_000 else 1_000
    return f"{code // major}.{code % major // 100}.{code % 100}"


def detect(text: str) -> bool:
    """Return whether the text has a line that only these programs print."""
    return any(word in text for word in _WORDS) and _MARKS.search(text) is not None


def read(text: str, *, origin: str) -> ProgramRead:
    """Read the runs in a text, with the numbers of the lines that were understood.

    Raises InputError for rccl-tests on GPUs that are not NVIDIA's.
    """
    reader = _Reader()
    understood = understood_of(text, reader.add)
    names = {rank.name for run in reader.runs for rank in run.ranks}
    if any(map(_AMD.search, names)) or (not names and _RCCL.search(text)):
        raise InputError(
            f"{origin} is from rccl-tests, which is for AMD GPUs", "gputopo supports NVIDIA GPUs only"
        )
    others = [line for number, line in enumerate(text.splitlines(), 1) if number not in understood]
    mentioned = runs.programs_in("\n".join([PurePath(origin).name, *others]))
    return ProgramRead(runs.machine(reader.runs, mentioned), understood)


class _Reader:
    """Reads one text line by line."""

    def __init__(self) -> None:
        self.runs = [NcclRun()]
        self.log = nccl_log.NcclLog()
        self.named: str | None = None  # program in a command line above the next run
        self.facts: dict[str, None] = {}  # settings in that command line
        self.begun = self.ended = False  # whether the head and the end of the output were read
        self.counts_wrong = self.by_iteration = False
        self.begun_row = ""  # the start of a row that the log interrupted

    @property
    def run(self) -> NcclRun:
        """The run whose output is being read."""
        return self.runs[-1]

    def add(self, number: int, line: str) -> bool:
        """Read one line. Returns False if it is not understood."""
        del number
        line = _STAMP.sub("", _PREFIX.sub("", line, count=1)).strip().lstrip("#").strip()
        if not line:
            return True
        readers = (self._log, self._head, self._row, self._end, self._command)
        return any(reader(line) for reader in readers)

    def _log(self, line: str) -> bool:
        """Read a line of NCCL's own log."""
        if not nccl_log.is_line(line):
            return False
        if match := _BEGUN.match(line):
            self.begun_row = match[1]
        if version := nccl_log.version_in(line):
            self._next_if_ended()
            self.run.nccl_version = version[0] + (f" (CUDA {version[1]})" if version[1] else "")
        self.run.facts.update(self.log.take(line))
        return True

    def _head(self, line: str) -> bool:
        """Read a line above the table."""
        if concluded := _CONCLUDED.match(line):
            if concluded[1] == "starting":
                self._begin()
            self.run.program = concluded[2]
        elif _HEAD.match(line):
            if not (self.begun and self.run.is_empty):
                self._begin()
        elif rank := _RANK.match(line):
            self._next_if_ended()
            number, group, host, device, bus, name = rank.groups()
            self.begun = True
            self.run.complete = False
            at = bus.lower().rstrip(":.") if bus else None
            self.run.ranks.append(
                Rank(int(number), (host or "").split(".")[0], int(group or 0), int(device), at, name.strip())
            )
        elif columns := _COLUMNS.match(line):
            if self.run.rows:
                self._begin()
            self.counts_wrong = "wrong" in columns[1]
            self.by_iteration = "i_min" in columns[1]
            self.run.by_cpu_time = "cputime" in columns[1]
        else:
            if library := _LIBRARY.match(line):
                self._begin()
                self.run.nccl_version = version_of(int(library[1]))
            if line == "..." and self.run.ranks and not self.run.rows:
                self.run.is_cut = True
            return _PROSE.match(line) is not None
        return True

    def _begin(self) -> None:
        """Start a run, unless nothing was read in the last one."""
        if not self.run.is_empty or self.ended:
            self.runs.append(NcclRun())
        self.begun, self.ended = True, False
        self.run.complete = False
        self.run.program = self.run.program or self.named
        self.run.facts.update(self.facts)
        self.named, self.facts = None, {}

    def _next_if_ended(self) -> None:
        if self.ended:
            self._begin()

    def _row(self, line: str) -> bool:
        """Read a row. Returns False if the line is not a row, or if its numbers contradict each other."""
        if self.begun_row and _REST.match(line):
            line, self.begun_row = f"{self.begun_row} {line}", ""
        match = _ROW.match(_BETWEEN.sub(" ", line))
        row = self._parsed(int(match[1]), match[3], match[4].split()) if match else None
        if row is None:
            return False
        if row.bytes == 0:
            return True
        if not self.begun and self.named and self.run.program is None:
            self.run.program, self.named = self.named, None
        if not self.run.add(row):
            again = self.run.again()
            self.run.complete = True
            self.runs.append(again)
            again.add(row)
        return True

    def _parsed(self, size: int, data_type: str, words: list[str]) -> NcclRow | None:
        """Read the words after the type; their number decides which columns they are."""
        reduction = words.pop(0) if _OPERATOR.match(words[0]) else None
        for rooted in (True, False):
            if rooted and not (words and _ROOT.match(words[0])):
                continue
            timed = self._halves(words[rooted:], size)
            if timed:
                root = int(words[0]) if rooted and not words[0].startswith("-") else None
                return NcclRow(size, data_type, None if reduction == "none" else reduction, root, timed)
        return None

    def _halves(self, words: list[str], size: int) -> tuple[Timed, ...]:
        """Read one or both halves of a row; returns an empty tuple if the words are not a row."""
        for count in (2, 1):
            if len(words) % count or len(words) // count not in _PER_HALF:
                continue
            each = len(words) // count
            if each == 8 and count == 1 and not self.by_iteration:
                continue
            halves = [words[:each], words[each:]][:count]
            timed = [self._timed(half, size, in_place=at > 0) for at, half in enumerate(halves)]
            understood = tuple(half for half in timed if half is not None)
            if len(understood) == count:
                return understood
        return ()

    def _timed(self, words: list[str], size: int, *, in_place: bool) -> Timed | None:
        """Read a half: time, rates, errors. The rate of a simultaneous copy is before the errors."""
        us, algorithm, bus = (_number(word) for word in words[:3])
        errors = {3: "?", 5: words[-1]}.get(len(words)) or words[3]
        wrong = _number(errors.rstrip("*"))
        if not us or algorithm is None or bus is None or (wrong is None and errors not in ("N/A", "?")):
            return None
        is_count = wrong is not None and (self.counts_wrong or re.fullmatch(r"\d+", errors))
        count = int(wrong or 0) if is_count else None
        timed = Timed(in_place, us, algorithm, bus, count, unchecked=errors == "N/A")
        return timed if size == 0 or timed.agrees(size, _rounding(words[0])) else None

    def _end(self, line: str) -> bool:
        """Read a line below the table, or a line about a failure."""
        if bounds := _OUT_OF_BOUNDS.match(line):
            self.run.out_of_bounds = int(bounds[1])
        elif average := _AVERAGE.match(line):
            self.run.complete = self.ended = True
            if average[2] == "FAILED":
                says = f"average bus bandwidth {average[1]} GB/s is below NCCL_TESTS_MIN_BW"
                self.run.failures.append(("BELOW_MINIMUM", says))
        elif failed := _FAILED.match(line):
            self.run.failures.append((_REASONS[failed[1]], failed[2].strip(" '") or "no message"))
        elif error := _LAST_ERROR.match(line):
            self.run.last_error = error[1]
        elif timeout := _TIMEOUT.match(line):
            self.run.failures.append(("TIMED_OUT", f"no end within {timeout[1]} s"))
        else:
            return _UNWOUND.match(line) is not None
        return True

    def _command(self, line: str) -> bool:
        """Read the command line of a program, which identifies the operation."""
        program = program_of(line)
        if program is None:
            return False
        self.named, self.facts = program, nccl_log.deciding(nccl_log.settings_in(line))
        if self.begun and not self.run.rows and self.run.program is None and not self.ended:
            self.run.program, self.named = self.named, None
        return True


def _number(word: str) -> float | None:
    return float(word) if _NUMBER.match(word) else None


def _rounding(word: str) -> float:
    """Return the rounding error of a number as a share: times from 10 s up are printed as `1.8e+07`."""
    digits = word.partition("e")[0]
    unit: float = 10.0 ** -len(digits.partition(".")[2])
    return unit / 2 / float(digits)


PROGRAM = Program(detect, read)
