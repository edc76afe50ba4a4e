"""The file of a sweep: TOML text in, a checked `Matrix` out.

| key                              | meaning                                                              |
|----------------------------------|----------------------------------------------------------------------|
| `title`                          | heading of the results                                               |
| `options`                        | options of `gputopo run`, by name, of every cell                     |
| `matrix`, or several of it       | a table each: options with a value or a list; all combinations run   |
| `set` (several)                  | options, or `seconds`, that are set where a cell matches `when`      |
| `exclude`, `only` (several)      | cells that match are left out; only cells that match one of them run |
| `repeats`                        | how often each cell runs                                             |
| `seconds`                        | counted seconds of each cell, instead of a number of steps           |
| `order`, `seed`                  | "listed", "rounds" (all cells once, then again) or "random"          |
| `cool_down_s`, `cool_down_c`     | pause before a cell; wait until all GPUs are below that temperature  |
| `time_budget_s`                  | no cell is started that would not end within it                      |

A table of the matrix may have `table` (its name), `repeats`, `seconds` and `asked`: a flag of `gputopo sweep`
without which its cells are left out. The value false means that an option is not given.
"""

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any, Literal, get_args

import msgspec

from gputopo.values.errors import InputError, UsageError
from gputopo.values.option import Declared, listed, nearest, shown

PRESETS = ("quick", "scaling", "tf-official", "tensorpack", "lambda-cpu", "keras-multi-gpu")


def preset_text(name: str) -> str:
    """Return the TOML text of a preset. Raises UsageError with the nearest name."""
    if name not in PRESETS:
        near = nearest(name, PRESETS)
        hint = f"did you mean {near[0]}?" if near else f"the presets are {listed(PRESETS, 'and')}."
        raise UsageError(f"there is no preset {shown(name)}", f"{hint} A file is given with --matrix FILE")
    data = resources.files("gputopo.reference.data.sweeps").joinpath(f"{name}.toml")
    return data.read_text(encoding="utf-8")


Order = Literal["listed", "rounds", "random"]
Scalar = bool | int | float | str
Value = Scalar | tuple[Scalar, ...]
"""Of an option: a list in a list of values is joined by commas, as `gpus = [[0, 1], [2, 3]]`."""

# Not options of `gputopo run`: facts of a cell that `when`, `exclude` and `only` may ask for.
FACTS = ("backend", "table", "devices")
IMAGENET = "made:imagenet"
MADE = (IMAGENET, "made:cifar10")  # data_dir: a folder of drawn images, made within the sweep
# Values that stand for those of a machine.
WORDS: Mapping[str, tuple[str, ...]] = {
    "gpus": ("each", "pairs", "pairs-by-link"),
    "num_gpus": ("doubling", "counted"),
}
AT_MOST = "at-most-"  # with a number: as many GPUs, or all where there are fewer
MAX_CELLS = 10_000  # a bound on products, so that a typing mistake cannot fill memory and disk
MAX_BYTES = 1 << 20  # of a file
ASKED = ("compare_pairs",)


class MatrixTable(msgspec.Struct, frozen=True, kw_only=True):
    """One table of the matrix: `axes` are the values of each option, of which all combinations are cells."""

    name: str
    axes: dict[str, tuple[Value, ...]]
    repeats: int | None = None
    seconds: float | None = None
    asked: str | None = None


class When(msgspec.Struct, frozen=True, kw_only=True):
    """Cells with one of these values for each option or fact."""

    match: dict[str, tuple[Value, ...]]
    sets: dict[str, Value] = {}  # options
    seconds: float | None = None  # counted ones of these cells, None: as they are
    reason: str | None = None  # why, or None


class Matrix(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep as its file describes it."""

    title: str
    tables: tuple[MatrixTable, ...]
    options: dict[str, Value] = {}
    sets: tuple[When, ...] = ()
    exclude: tuple[When, ...] = ()
    only: tuple[When, ...] = ()
    repeats: int = 1
    seconds: float | None = None
    order: Order = "listed"
    seed: int | None = None
    cool_down_s: float = 0.0
    cool_down_c: float | None = None
    time_budget_s: float | None = None


def read(text: str, known: Mapping[str, Declared], *, origin: str, unfit: Mapping[str, str] = {}) -> Matrix:
    """Return the matrix of a file's text. `known`: options of a cell by name; `unfit`: others, with why not.

    Raises InputError for text that is no TOML, UsageError for a key that there is not (with the nearest) and
    for a value that cannot be.
    """
    if len(text) > MAX_BYTES:
        raise InputError(f"{origin} is too large for a matrix", f"at most {MAX_BYTES >> 20} MiB are read")
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(
            f"{origin} is not TOML: {error}", "gputopo explain sweep shows the form of a matrix"
        ) from error
    return _Reader(known, unfit, origin).matrix(document)


def text_of(value: Value) -> str:
    """Return the value of an option as it is typed; of a flag that is given: empty."""
    if isinstance(value, tuple):
        return ",".join(map(text_of, value))
    if isinstance(value, bool):
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)


def is_bound(value: Value) -> bool:
    """Return whether it is `at-most-N`."""
    return isinstance(value, str) and re.fullmatch(AT_MOST + "[1-9][0-9]{0,3}", value) is not None


class _Reader:
    """Reads a document; its errors name the file."""

    def __init__(self, known: Mapping[str, Declared], unfit: Mapping[str, str], origin: str) -> None:
        self._known = known
        self._unfit = unfit
        self._origin = origin

    def matrix(self, document: Mapping[str, Any]) -> Matrix:
        readers: dict[str, Callable[[str, Any], Any]] = {
            "title": self._text,
            "options": lambda key, value: self._options(self._table(key, value)),
            "repeats": self._count,
            "seconds": self._positive,
            "order": self._order,
            "seed": lambda key, value: self._number(key, value, int, 0),
            "cool_down_s": lambda key, value: self._number(key, value, float, 0),
            "cool_down_c": self._positive,
            "time_budget_s": self._positive,
        }
        lists: dict[str, Callable[[int, Any], Any]] = {
            "matrix": self._axes,
            "set": self._set,
            "exclude": lambda _, table: self._match(table),
            "only": lambda _, table: self._match(table),
        }
        found: dict[str, Any] = {}
        for key, value in document.items():
            if key in readers:
                found[key] = readers[key](key, value)
            elif key in lists:
                tables = value if isinstance(value, list) else [value]
                parts = tuple(lists[key](number, self._table(key, one)) for number, one in enumerate(tables))
                found[{"matrix": "tables", "set": "sets"}.get(key, key)] = parts
            else:
                raise self._unknown(key, (*readers, *lists))
        if not found.get("tables"):
            raise self._wrong("it has no [matrix]", 'write one: [matrix] and below it model = ["alexnet"]')
        return Matrix(**{"title": "Sweep", **found})

    def _axes(self, number: int, table: Mapping[str, Any]) -> MatrixTable:
        own = {"table", "repeats", "seconds", "asked"}
        axes = {}
        for key, value in table.items():
            if key in own:
                continue
            name = self._option(key, tuple(own))
            values = value if isinstance(value, list) else [value]
            if not values:
                raise self._wrong(f"{key} has no value", "name at least one, or leave it out")
            axes[name] = tuple(self._value(name, one) for one in values)
        return MatrixTable(
            name=self._text("table", table.get("table", str(number + 1))),
            axes=axes,
            repeats=self._count("repeats", table["repeats"]) if "repeats" in table else None,
            seconds=self._positive("seconds", table["seconds"]) if "seconds" in table else None,
            asked=self._choice("asked", table["asked"], ASKED) if "asked" in table else None,
        )

    def _set(self, _number: int, table: Mapping[str, Any]) -> When:
        rest = {key: value for key, value in table.items() if key not in ("when", "reason", "seconds")}
        found = self._match({"reason": None, **self._table("when", table.get("when", {}))})
        seconds = self._positive("seconds", table["seconds"]) if "seconds" in table else None
        if not rest and seconds is None:
            raise self._wrong("a [[set]] sets nothing", "add an option, such as batch_size = 32")
        reason = None if table.get("reason") is None else self._text("reason", table["reason"])
        sets = self._options(rest)
        if is_bound(sets.get("num_gpus", False)):
            raise self._wrong(
                "num_gpus cannot be at-most-N in a [[set]]", "write it in [options] or [matrix]"
            )
        return msgspec.structs.replace(found, sets=sets, seconds=seconds, reason=reason)

    def _match(self, table: Mapping[str, Any]) -> When:
        match: dict[str, tuple[Value, ...]] = {}
        for key, value in table.items():
            if key == "reason":
                continue
            name = key if key in FACTS else self._option(key, (*FACTS, "reason"))
            values = value if isinstance(value, list) else [value]
            match[name] = tuple(self._plain(key, one) for one in values)
        reason = None if table.get("reason") is None else self._text("reason", table["reason"])
        return When(match=match, reason=reason)

    def _options(self, table: Mapping[str, Any]) -> dict[str, Value]:
        found = {}
        for key, value in table.items():
            name = self._option(key, ())
            found[name] = self._value(name, tuple(value) if isinstance(value, list) else value)
            if self._is_word(name, found[name]) and found[name] not in MADE and not is_bound(found[name]):
                raise self._wrong(f"{key} = {shown(text_of(found[name]))} is several", "write it in [matrix]")
        return found

    def _option(self, key: str, others: Sequence[str]) -> str:
        """Return the name of an option as `known` has it."""
        name = key.replace("-", "_")
        if name in self._unfit:
            raise self._wrong(f"{key} is no option of a cell: {self._unfit[name]}", "leave it out")
        if name not in self._known:
            raise self._unknown(key, (*self._known, *others))
        return name

    def _value(self, name: str, given: Any) -> Value:
        """Return the value of an option, once the option's own reader has read it."""
        value = self._plain(name, given)
        declared = self._known[name]
        if value is False or self._is_word(name, value):
            return value
        if declared.is_flag != (value is True):
            hint = "give true or false" if declared.is_flag else f"give {declared.usage}"
            raise self._wrong(f"{name} cannot be {shown(text_of(value) or 'true')}", hint)
        try:
            if not declared.is_flag:
                text = text_of(value)
                declared.values([text] if declared.option.repeated else text)
        except UsageError as error:
            raise self._wrong(error.what, error.hint) from error
        except InputError as error:
            raise InputError(f"{self._origin}: {error.what}", error.hint) from error
        return value

    def _is_word(self, name: str, value: Value) -> bool:
        made = name == "data_dir" and value in MADE
        return made or value in WORDS.get(name, ()) or (name == "num_gpus" and is_bound(value))

    def _plain(self, key: str, value: Any) -> Value:
        if (
            isinstance(value, list | tuple)
            and value
            and all(isinstance(one, int | float | str) for one in value)
        ):
            return tuple(value)
        if not isinstance(value, bool | int | float | str):
            raise self._wrong(
                f"{key} cannot be a {type(value).__name__}", "give a text, a number, true or false"
            )
        return value

    def _table(self, key: str, value: Any) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            raise self._wrong(f"{key} is not a table", f"write [{key}] on a line, and its keys below it")
        return value

    def _text(self, key: str, value: Any) -> str:
        if not isinstance(value, str) or not value.strip():
            raise self._wrong(f"{key} is no text", f'write it in quotes: {key} = "..."')
        return value.strip()

    def _order(self, key: str, value: Any) -> str:
        return self._choice(key, value, get_args(Order))

    def _choice(self, key: str, value: Any, choices: tuple[str, ...]) -> str:
        if not isinstance(value, str) or value.replace("-", "_") not in choices:
            raise self._wrong(f"{key} cannot be {shown(str(value))}", f"it takes {listed(choices)}")
        return value.replace("-", "_")

    def _count(self, key: str, value: Any) -> int:
        return int(self._number(key, value, int, 1))

    def _positive(self, key: str, value: Any) -> float:
        found = self._number(key, value, float, 0)
        if not found > 0:
            raise self._wrong(f"{key} cannot be {value}", "give a number above 0")
        return found

    def _number(self, key: str, value: Any, kind: type[int] | type[float], low: int) -> float:
        whole = isinstance(value, int) and not isinstance(value, bool)
        fits = whole or (kind is float and isinstance(value, float))
        if not fits or not low <= value <= 1e9:
            word = "an integer" if kind is int else "a number"
            raise self._wrong(f"{key} cannot be {shown(str(value))}", f"give {word} from {low} to 1e9")
        return kind(value)

    def _unknown(self, key: str, known: Sequence[str]) -> UsageError:
        near = nearest(key, known)
        hint = f"did you mean {near[0]}?" if near else "gputopo explain sweep lists the keys"
        return self._wrong(f"there is no key {shown(key)}", hint)

    def _wrong(self, what: str, hint: str) -> UsageError:
        return UsageError(f"{self._origin}: {what}", hint)
