"""The file of a sweep: TOML text in, a checked `Matrix` out.

| key                              | meaning                                                              |
|----------------------------------|----------------------------------------------------------------------|
| `title`                          | heading of the results                                               |
| `options`                        | options of `gputopo run`, by name, of every cell                     |
| `matrix`, or several of it       | a table each: options with a value or a list; all combinations run   |
| `set` (several)                  | options, or `seconds`, that are set if a cell matches `when`         |
| `exclude`, `only` (several)      | cells that match are skipped; only cells that match one of them run  |
| `repeats`                        | how often each cell runs                                             |
| `seconds`                        | counted seconds of each cell, instead of a number of steps           |
| `order`, `seed`                  | "listed", "rounds" (all cells once, then again) or "random"          |
| `cool_down_s`, `cool_down_c`     | pause before a cell; wait until all GPUs are below that temperature  |
| `time_budget_s`                  | no cell is started that would not end within it                      |

A table of the matrix may have `table` (its name), `repeats`, `seconds` and `asked`: a flag of `gputopo sweep`
without which its cells are skipped. The value false means that an option is not given.
"""

import random
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Annotated, Any, Literal

import msgspec

from gputopo.values.errors import InputError, UsageError
from gputopo.values.option import Declared, listed, nearest, shown
from gputopo.values.run.options import SweepOptions
from gputopo.values.run.several_runs import SweepCell

PRESETS = ("quick", "scaling", "tf-official", "tensorpack", "lambda-cpu", "keras-multi-gpu")


Order = Literal["listed", "rounds", "random"]
Scalar = bool | int | float | str
Value = Scalar | tuple[Scalar, ...]
"""The value of an option. A list within a list of values is joined by commas: `gpus = [[0, 1], [2, 3]]`."""

# Facts of a cell that are no options of `gputopo run`; `when`, `exclude` and `only` may use them.
FACTS = ("backend", "table", "devices")
IMAGENET = "made:imagenet"
MADE = (IMAGENET, "made:cifar10")  # data_dir: a folder of generated images, written during the sweep
# Words that are replaced by values of the machine.
WORDS: Mapping[str, tuple[str, ...]] = {
    "gpus": ("each", "pairs", "pairs-by-link"),
    "num_gpus": ("doubling", "counted"),
}
AT_MOST = "at-most-"  # followed by a number: this many GPUs, or all GPUs if there are fewer
MAX_CELLS = 10_000  # a bound on products, so that a typing mistake cannot fill memory and disk
MAX_BYTES = 1 << 20  # of a file
_HINT = "gputopo explain sweep shows the form of a matrix"


Count = Annotated[int, msgspec.Meta(ge=1, le=10**9)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Values = Annotated[tuple[Value, ...], msgspec.Meta(min_length=1)]


class MatrixTable(msgspec.Struct, frozen=True, kw_only=True):
    """One table of the matrix. `axes`: the values of each option; the cells are all combinations."""

    name: str
    axes: dict[str, Values]
    repeats: Count | None = None
    seconds: Positive | None = None
    asked: Literal["compare_pairs"] | None = None


class When(msgspec.Struct, frozen=True, kw_only=True):
    """Cells with one of these values for each option or fact."""

    match: dict[str, tuple[Value, ...]]
    sets: dict[str, Value] = {}  # options
    seconds: Positive | None = None  # counted seconds of these cells; None: unchanged
    reason: str | None = None  # why, or None


class Matrix(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep as its file describes it."""

    tables: tuple[MatrixTable, ...]
    title: str = "Sweep"
    options: dict[str, Value] = {}
    sets: tuple[When, ...] = ()
    exclude: tuple[When, ...] = ()
    only: tuple[When, ...] = ()
    repeats: Count = 1
    seconds: Positive | None = None
    order: Order = "listed"
    seed: Annotated[int, msgspec.Meta(ge=0, le=10**9)] | None = None
    cool_down_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    cool_down_c: Positive | None = None
    time_budget_s: Positive | None = None

    def ordered(self, cells: Sequence[SweepCell], seed: int | None) -> Sequence[SweepCell]:
        """Return the cells in the order in which they run; the same for the same seed."""
        if self.order == "random":
            return random.Random(seed).sample(list(cells), len(cells))
        if self.order == "rounds":
            return sorted(cells, key=lambda cell: (cell.repeat, cell.number))
        return cells


def matrix_source(options: SweepOptions) -> tuple[str, str]:
    """Return the name and the TOML text of the typed matrix, else of the file, else of the preset.

    Raises InputError for a file that cannot be read, UsageError with the nearest name for an unknown preset.
    """
    file, preset = options.matrix, options.preset
    if options.typed is not None:
        return "command line", options.typed
    if file is None:
        assert preset is not None
        if preset not in PRESETS:
            hint = _nearest(preset, PRESETS) or f"the presets are {listed(PRESETS, 'and')}."
            hint += " A file is given with --matrix FILE"
            raise UsageError(f"there is no preset {shown(preset)}", hint)
        data = resources.files("gputopo.reference.data.sweeps").joinpath(f"{preset}.toml")
        return preset, data.read_text(encoding="utf-8")
    try:
        if file.stat().st_size > MAX_BYTES:
            raise InputError(f"{file} is too large for a matrix", f"at most {MAX_BYTES >> 20} MiB are read")
        return file.name, file.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}", "give a TOML file with --matrix") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 text", "give a TOML file with --matrix") from error


def parse_matrix(
    text: str, known: Mapping[str, Declared], *, origin: str, unfit: Mapping[str, str] = {}
) -> Matrix:
    """Return the matrix of a file's text.

    `known`: options of a cell by name. `unfit`: options that a cell cannot have, with the reason. Raises
    InputError if the text is not TOML, and UsageError for an unknown key (with the nearest known one) or an
    invalid value.
    """
    try:
        return msgspec.convert(_Parser(known, unfit).fields(tomllib.loads(text)), Matrix)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{origin} is not TOML: {error}", _HINT) from error
    except msgspec.ValidationError as error:
        raise UsageError(f"{origin}: {error}", _HINT) from error
    except (InputError, UsageError) as error:
        raise type(error)(f"{origin}: {error.what}", error.hint) from error


def text_of(value: Value) -> str:
    """Return the value of an option as it is typed; empty for a flag that is given."""
    if isinstance(value, list | tuple):
        return ",".join(map(text_of, value))
    if isinstance(value, bool):
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)


def is_bound(value: Value) -> bool:
    """Return whether the value is `at-most-N`."""
    return isinstance(value, str) and re.fullmatch(AT_MOST + "[1-9][0-9]{0,3}", value) is not None


class _Parser:
    """Turns the tables of a file into the fields of a `Matrix`, whose types the caller checks."""

    def __init__(self, known: Mapping[str, Declared], unfit: Mapping[str, str]) -> None:
        self._known = known
        self._unfit = unfit

    def fields(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of the whole file."""
        readers: dict[str, tuple[str, Callable[[int, Mapping[str, Any]], dict[str, Any]]]] = {
            "matrix": ("tables", self._axes),
            "set": ("sets", self._set),
            "exclude": ("exclude", self._when),
            "only": ("only", self._when),
        }
        keys = (*readers, *(name for name in Matrix.__struct_fields__ if name not in ("tables", "sets")))
        fields: dict[str, Any] = {}
        for key, value in document.items():
            if key in readers:
                field, reader = readers[key]
                tables = enumerate(value if isinstance(value, list) else [value])
                fields[field] = [reader(number, _table(key, table)) for number, table in tables]
            elif key in keys:
                fields[key] = self._options(_table(key, value)) if key == "options" else value
            else:
                raise _unknown(key, keys)
        if not fields.get("tables"):
            raise UsageError("it has no [matrix]", 'write one: [matrix] and below it model = ["alexnet"]')
        return fields

    def _axes(self, number: int, table: Mapping[str, Any]) -> dict[str, Any]:
        fields = ("repeats", "seconds", "asked")
        axes = {}
        for key, values in table.items():
            if key not in (*fields, "table"):
                name = self._name(key, ("table", *fields))
                axes[name] = [self._value(name, value) for value in _listed(values)]
        given = {name: table[name] for name in fields if name in table}
        return {"name": table.get("table", str(number + 1)), "axes": axes, **given}

    def _set(self, _number: int, table: Mapping[str, Any]) -> dict[str, Any]:
        given = {name: table[name] for name in ("reason", "seconds") if name in table}
        rest = {key: value for key, value in table.items() if key not in given and key != "when"}
        sets = self._options(rest)
        if not sets and "seconds" not in given:
            raise UsageError("a [[set]] sets nothing", "add an option, such as batch_size = 32")
        if is_bound(sets.get("num_gpus", False)):
            raise UsageError("num_gpus cannot be at-most-N in a [[set]]", "write it in [options] or [matrix]")
        return {"match": self._match(_table("when", table.get("when", {}))), "sets": sets, **given}

    def _when(self, _number: int, table: Mapping[str, Any]) -> dict[str, Any]:
        return {"match": self._match(table), "reason": table.get("reason")}

    def _match(self, table: Mapping[str, Any]) -> dict[str, Any]:
        return {
            key if key in FACTS else self._name(key, (*FACTS, "reason")): _listed(value)
            for key, value in table.items()
            if key != "reason"
        }

    def _options(self, table: Mapping[str, Any]) -> dict[str, Value]:
        options = {}
        for key, value in table.items():
            name = self._name(key, ())
            options[name] = self._value(name, value)
            if _is_word(name, value) and value not in MADE and not is_bound(value):
                raise UsageError(f"{key} = {shown(text_of(value))} is several", "write it in [matrix]")
        return options

    def _name(self, key: str, others: Sequence[str]) -> str:
        """Return the name of an option as `known` has it. `others`: other keys that are allowed there."""
        name = key.replace("-", "_")
        if name in self._unfit:
            raise UsageError(f"{key} is not an option of a cell: {self._unfit[name]}", "remove it")
        if name not in self._known:
            raise _unknown(key, (*self._known, *others))
        return name

    def _value(self, name: str, value: Value) -> Value:
        """Return the value of an option, once the option's own reader has read it."""
        declared = self._known[name]
        if value is False or _is_word(name, value):
            return value
        if declared.is_flag != (value is True):
            hint = "give true or false" if declared.is_flag else f"give {declared.usage}"
            raise UsageError(f"{name} cannot be {shown(text_of(value) or 'true')}", hint)
        if not declared.is_flag:
            text = text_of(value)
            declared.values([text] if declared.option.repeated else text)
        return value


def _is_word(name: str, value: Value) -> bool:
    """Return whether a value is replaced by values of the machine, or by data that the sweep generates."""
    made = name == "data_dir" and value in MADE
    return made or value in WORDS.get(name, ()) or (name == "num_gpus" and is_bound(value))


def _table(key: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{key} is not a table", f"write [{key}] on a line, and its keys below it")
    return value


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _unknown(key: str, known: Sequence[str]) -> UsageError:
    hint = _nearest(key, known) or "gputopo explain sweep lists the keys"
    return UsageError(f"there is no key {shown(key)}", hint)


def _nearest(name: str, known: Sequence[str]) -> str:
    near = nearest(name, known)
    return f"did you mean {near[0]}?" if near else ""
