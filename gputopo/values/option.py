"""Options of commands, each declared next to the type of the field or parameter that it sets.

`seed: Annotated[int, Option("--seed", "Random seed", min=0)] = 1234`: type and default are those of the
field. A function that reads the text may be next to it: `Annotated[str | None, read_folder, Option(...)]`.
"""

import inspect
import keyword
import math
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from gputopo.values.errors import UsageError

if TYPE_CHECKING:
    import msgspec

Choice = TypeVar("Choice", bound=str)
Text = str | bool | Sequence[str]
"""What was typed for an option: its value, True for a flag, all values of a repeatable option."""

MAX_INT = 2**31 - 1  # sizes and seeds of TensorFlow are C ints
MAX_FLOAT = 3.4e38  # the largest float32
_SHORT_DEFAULT = 6  # characters
# Minimum similarity of a typing mistake (difflib's ratio). Not measured; chosen because it allows two wrong
# letters in eight, but neither googlenet (0.67) nor lenet (0.71) is a mistake for mobilenet.
_SLIP = 0.75


# Suffixes of numbers by the unit of the option. The factors are for the smallest unit of its kind.
_SECONDS = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_PREFIXES = {"k": 2.0**10, "m": 2.0**20, "g": 2.0**30}
_BYTES = {"b": 1.0} | {
    f"{prefix}{end}": factor for prefix, factor in _PREFIXES.items() for end in ("", "b", "ib")
}
UNITS = {
    "s": (1.0, _SECONDS, "a time such as 90s, 5m or 2h"),
    "min": (60.0, _SECONDS, "a time such as 90s, 5m or 2h"),
    "bytes": (1.0, _BYTES, "a size such as 64KiB, 512MiB or 1GiB"),
    "MiB": (2.0**20, _BYTES, "a size such as 512MiB or 16GiB"),
}


def number_in(unit: str, text: str) -> float:
    """Return the number in a text in a unit of `UNITS`, or "" for none; NaN if the text is not a number.

    A number without a suffix is in that unit. KB, MB and GB are read as KiB, MiB and GiB.
    """
    unit_factor, suffixes, _ = UNITS[unit] if unit else (1.0, {}, "")
    match = re.fullmatch(r"(.*[0-9.]) *([A-Za-z]+)", text.strip())
    try:
        if match and match[2].lower() in suffixes:
            return float(match[1]) * suffixes[match[2].lower()] / unit_factor
        return float(text)
    except ValueError:
        return math.nan


@dataclass(frozen=True)
class Option:
    """An option of a command.

    `flag`: as it is typed, without dashes for a positional argument. `help`: one line. `detail`: added by
    --help-all. Both texts have no full stop. `min`, `max`, `above`, `below`: range of a number.

    `words`: what may be given instead of a number, with the fields that each word sets; "": the option
    without a value. `read`: returns the value for (flag, text) if the type is not enough, or a dictionary of
    values for any number of fields; raises UsageError or InputError.
    """

    flag: str
    help: str
    _: KW_ONLY
    detail: str = ""
    value: str = ""  # placeholder of the value; by default from the type
    unit: str = ""  # unit of the number, a key of UNITS: `90s`, `5m` or `1GB` are converted to it
    theme: str = ""  # heading in the help; by default the THEME of its struct
    more: bool = False  # only --help-all shows it
    default: str = ""  # the default in words, if it is not the default of the field
    min: float | None = None
    above: float | None = None
    below: float | None = None
    max: float | None = None
    words: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    read: Callable[[str, Any], Any] | None = None
    letter: str = ""  # a second flag, `-i`
    repeated: bool = False  # it may be given several times; the value is a tuple, and `read` gets all texts

    def whole(self, text: str) -> int:
        """Return the integer that was typed. Raises UsageError."""
        low = -MAX_INT if self.min is None else int(self.min)
        high = MAX_INT if self.max is None else int(self.max)
        try:
            value = int(number_in(self.unit, text) if self.unit else int(text))
        except (ValueError, OverflowError):
            wanted = UNITS[self.unit][2] if self.unit else f"{self.flag} {self.value or 'N'}: {self.help}"
            raise UsageError(
                f"{self.flag} cannot be {shown(text)}: not an integer", f"give {wanted}"
            ) from None
        if low <= value <= high:
            return value
        limit = f"{low} or more" if value < low else f"{high} at most"
        hint = limit if self.max is None else f"{low} to {high}"
        raise UsageError(f"{self.flag} cannot be {shown(text)[1:-1]}", f"give {hint}")

    def number(self, text: str) -> float:
        """Return the number that was typed. Raises UsageError."""
        value = number_in(self.unit, text)
        low = self.above if self.above is not None else self.min
        high = self.below if self.below is not None else self.max or MAX_FLOAT
        too_low = low is not None and (value <= low if self.above is not None else value < low)
        too_high = not (value < high if self.below is not None else value <= high)
        if too_low or too_high:
            since = "" if low is None else f" {'above' if self.above is not None else 'from'} {low:g}"
            until = f"{', below' if self.below is not None else ' to'} {high:g}"
            until = "" if self.below is None and self.max is None else until
            limits = f"{since}{until} {self.unit}".rstrip()
            hint = f"give {UNITS[self.unit][2]},{limits}" if self.unit else f"give a number{limits}"
            raise UsageError(f"{self.flag} cannot be {shown(text)[1:-1]}", hint)
        return value


@dataclass(frozen=True)
class OptionsOf:
    """A parameter with all options of a spec: `given: Annotated[Given, OptionsOf(RunSpec)]`.

    If the type of the parameter is the spec itself, its value is a spec, with defaults for options that were
    not typed.
    """

    spec: "type[msgspec.Struct]"


Typed = Mapping[str, Any]
"""The type of a parameter with all options of the command as typed, by name."""


@dataclass(frozen=True)
class Given:
    """The typed options of a spec: values of its fields, and what was typed by option name."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    typed: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Declared:
    """An option with the parameter or field that it sets. `part`: path of the field's struct in the spec."""

    option: Option
    field: str
    kind: Any
    default: Any
    part: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name as an identifier: `batch_size` of --batch-size, `async_` of --async."""
        if self.is_positional:
            return self.field
        name = self.option.flag.removeprefix("--").replace("-", "_")
        return f"{name}_" if keyword.iskeyword(name) else name

    @property
    def is_positional(self) -> bool:
        """Whether it is an argument without a flag."""
        return not self.option.flag.startswith("--")

    @property
    def is_flag(self) -> bool:
        """Whether it takes no value."""
        alone = "" in self.option.words and not self.option.value
        return alone or (self.kind is bool and self.option.read is None)

    @property
    def is_required(self) -> bool:
        """Whether the command needs it."""
        return self.default is inspect.Parameter.empty and not self.option.default

    @property
    def placeholder(self) -> str:
        """The placeholder of the value in the help: `N`, `table|json`; empty for a flag."""
        if self.is_flag or self.is_positional:
            return ""
        if get_origin(self.kind) is Literal:
            return self.option.value or "|".join(get_args(self.kind))
        kind = {int: "N", float: "X", Path: "FILE"}.get(self.kind, "TEXT")
        return self.option.value or "|".join((kind, *self.option.words))

    @property
    def default_text(self) -> str:
        """The default in words; empty if the option has no default."""
        shown = self.default
        if self.option.default or self.is_flag or self.is_required:
            return self.option.default
        nothing = shown is None or shown is False or isinstance(shown, tuple | dict)
        return "" if nothing else str(shown).removesuffix(".0")

    @property
    def help(self) -> str:
        """Help with detail and default, as sentences."""
        return " ".join(self._sentences(self.option.help, self.option.detail, self._default))

    @property
    def short_help(self) -> str:
        """The line of --help, with the default if it is short."""
        default = self._default if len(self.default_text) <= _SHORT_DEFAULT else ""
        return " ".join(self._sentences(self.option.help, default))

    @property
    def _default(self) -> str:
        return f"Default: {self.default_text}" if self.default_text else ""

    def _sentences(self, *sentences: str) -> list[str]:
        required = "Required" if self.is_required else ""
        return [f"{sentence}." for sentence in (*sentences, required) if sentence]

    def values(self, text: Text) -> dict[str, Any]:
        """Return the values of fields for a text. Raises UsageError or InputError."""
        option = self.option
        word = "" if text is True else str(text).lower()
        if word in option.words:
            return dict(option.words[word])
        if option.read is not None:
            value = option.read(option.flag, text)
            return value if isinstance(value, dict) else {self.field: value}
        if self.is_flag:
            return {self.field: True}
        if option.repeated:
            assert not isinstance(text, bool)
            return {self.field: tuple(text)}
        return {self.field: self._one(str(text))}

    def as_typed(self, text: Text) -> Any:
        """Return the text in the form for a result: numbers as numbers, a list for a repeatable option."""
        if self.option.repeated:
            assert not isinstance(text, bool)
            return list(text)
        if text == "" and self.placeholder.startswith("["):
            return True
        plain = self.option.read is None and self.kind in (int, float) and not self.is_flag
        if self.option.read is not None and self.kind is int and str(text).isdecimal():
            return int(str(text))
        return self._one(str(text)) if plain else text

    def _one(self, text: str) -> Any:
        if text.lower() in self.option.words:
            return text.lower()
        if self.kind is int:
            return self.option.whole(text)
        if self.kind is float:
            return self.option.number(text)
        if get_origin(self.kind) is Literal:
            return require_choice(self.option.flag, text, get_args(self.kind))
        return self.kind(text)

    @property
    def usage(self) -> str:
        """How to use it, with its help: `--seed N: Random seed`."""
        return f"{self.option.flag} {self.placeholder}".rstrip() + f": {self.option.help}"


@cache
def options_of(spec: "type[msgspec.Struct]", part: tuple[str, ...] = ()) -> tuple[Declared, ...]:
    """Return the options that a spec declares with its fields, including those of its parts."""
    import msgspec

    options: list[Declared] = []
    for member in msgspec.structs.fields(spec):
        if (kind := _struct(member.type)) is not None:
            options += options_of(kind, (*part, member.name))
        default = inspect.Parameter.empty if member.default is msgspec.NODEFAULT else member.default
        options += _of(member.type, member.name, default, part, getattr(spec, "THEME", ""))
    return tuple(options)


def _of(
    annotation: Any, name: str, default: Any, part: tuple[str, ...] = (), theme: str = ""
) -> Iterator[Declared]:
    """Yield the options next to the type of a field or a parameter. `theme`: for options without a theme."""
    kind, extras = _declared(annotation)
    read = next((extra for extra in extras if callable(extra)), None)
    for option in (extra for extra in extras if isinstance(extra, Option)):
        reads = read is not None and "" not in option.words
        option = replace(option, read=read if reads else option.read, theme=option.theme or theme)
        yield Declared(option, name, kind, default, part)


def parameters_of(command: Callable[..., Any]) -> tuple[Declared, ...]:
    """Return the options that a command declares with its parameters."""
    parameters = inspect.signature(command, eval_str=True).parameters.values()
    return tuple(option for parameter in parameters for option in _of_parameter(parameter))


def arguments_for(command: Callable[..., Any], texts: Mapping[str, Text]) -> dict[str, Any]:
    """Return the arguments of a command for the texts of its options.

    Raises UsageError if a text is missing or invalid, and InputError if the option's reader does.
    """
    arguments: dict[str, Any] = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        options = _of_parameter(parameter)
        missing = next(
            (option for option in options if option.is_required and option.name not in texts), None
        )
        if missing is not None:
            raise UsageError(f"{missing.option.flag} is missing", f"add {missing.usage}")
        spec = _spec(parameter.annotation)
        if spec is not None:
            given = given_of(spec, texts)
            whole = get_args(parameter.annotation)[0] is spec
            arguments[parameter.name] = spec(**given.fields) if whole else given
            continue
        if parameter.annotation == Typed:
            arguments[parameter.name] = _typed(parameters_of(command), texts)
        arguments.update(_values(options, texts).get((), {}))
    return arguments


def _typed(options: Iterable[Declared], texts: Mapping[str, Text]) -> dict[str, Any]:
    return {
        option.name.rstrip("_"): option.as_typed(texts[option.name])
        for option in options
        if option.name in texts
    }


def _of_parameter(parameter: inspect.Parameter) -> tuple[Declared, ...]:
    spec = _spec(parameter.annotation)
    if spec is not None:
        return options_of(spec)
    return tuple(_of(parameter.annotation, parameter.name, parameter.default))


def given_of(spec: "type[msgspec.Struct]", texts: Mapping[str, Text]) -> Given:
    """Return the fields of a spec that were given. Raises UsageError and InputError."""
    options = [option for name, option in _named_options(spec) if name in texts]
    values = _values(options, texts)
    return Given(_fields(spec, values, ()), _typed(options, texts))


@cache
def _named_options(spec: "type[msgspec.Struct]") -> tuple[tuple[str, Declared], ...]:
    return tuple((option.name, option) for option in options_of(spec))


def _values(options: Iterable[Declared], texts: Mapping[str, Text]) -> dict[tuple[str, ...], dict[str, Any]]:
    """Return the values of fields by the path of their struct."""
    values: dict[tuple[str, ...], dict[str, Any]] = {}
    for option in options:
        if option.name in texts:
            values.setdefault(option.part, {}).update(option.values(texts[option.name]))
    return values


def _fields(
    spec: "type[msgspec.Struct]", values: Mapping[tuple[str, ...], dict[str, Any]], part: tuple[str, ...]
) -> dict[str, Any]:
    fields = dict(values.get(part, {}))
    for name, kind in _structs_in(spec):
        if inner := _fields(kind, values, (*part, name)):
            fields[name] = kind(**inner)
    return fields


@cache
def _structs_in(spec: "type[msgspec.Struct]") -> "tuple[tuple[str, type[msgspec.Struct]], ...]":
    """Return the fields that are structs, with their types."""
    import msgspec

    kinds = ((member.name, _struct(member.type)) for member in msgspec.structs.fields(spec))
    return tuple((name, kind) for name, kind in kinds if kind is not None)


def _struct(annotation: Any) -> "type[msgspec.Struct] | None":
    """Return the type of a field if it is a struct."""
    import msgspec

    kind, _ = _declared(annotation)
    return kind if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else None


def _spec(annotation: Any) -> "type[msgspec.Struct] | None":
    extras = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
    return next((extra.spec for extra in extras if isinstance(extra, OptionsOf)), None)


def _declared(annotation: Any) -> tuple[Any, list[Any]]:
    """Return the type without None, and the annotations next to it: an option, a reader."""
    extras: list[Any] = []
    if get_origin(annotation) is Annotated:
        annotation, *extras = get_args(annotation)
    if get_origin(annotation) in (Union, types.UnionType):
        annotation = next(kind for kind in get_args(annotation) if kind is not types.NoneType)
    return annotation, extras


def nearest(word: str, known: Iterable[str]) -> tuple[str, ...]:
    """Return the known words that start with `word`, else those for which it may be a typing mistake.

    The most similar words come first, at most three; equally similar ones keep their order. Empty if no word
    is similar, because a different name is no help.
    """
    from difflib import SequenceMatcher  # only needed for an error

    names = list(known)
    begun = [name for name in names if word and name.lower().startswith(word.lower())]
    alike = {name: SequenceMatcher(None, name.lower(), word.lower()).ratio() for name in names}
    near = sorted((name for name in names if alike[name] >= _SLIP), key=lambda name: -alike[name])
    return tuple((begun or near)[:3])


def require_choice(flag: str, value: str, choices: tuple[Choice, ...]) -> Choice:
    """Return the choice that equals `value`, ignoring case, - and _. Raises UsageError with the nearest."""
    by_word = {_plain(choice): choice for choice in choices}
    if _plain(value) in by_word:
        return by_word[_plain(value)]
    near = nearest(value, choices)
    hint = f"did you mean {near[0]}? It takes {listed(choices)}" if near else f"it takes {listed(choices)}"
    raise UsageError(f"{flag} cannot be {shown(value)}", hint)


def listed(words: Iterable[str], joint: str = "or") -> str:
    """Return words as `a, b or c`."""
    *head, last = words
    return f"{', '.join(head)} {joint} {last}" if head else last


def shown(value: str) -> str:
    """Return typed text in quotes on one line, shortened if it is very long."""
    quoted = ascii(value) if not value.isprintable() else f"'{value}'"
    return quoted if len(quoted) <= 60 else f"{quoted[:56]}...'"


def _plain(word: str) -> str:
    return word.lower().replace("-", "_")


T = TypeVar("T")
When = Callable[[T], object]
"""Returns whether a condition holds. A condition on options returns the given ones, as flags."""


class Refusal(NamedTuple, Generic[T]):
    """Options that cannot be combined, as a row of a table. It applies if all conditions hold.

    In the texts, `{option}` and `{other}` are the first options that the first and the second condition on
    options return. `{options}` are all options of the first, and `{them}` is "it" or "them" accordingly.
    """

    when: tuple[When[T], ...]
    what: str
    use: str


def refuse(rows: Iterable[Refusal[T]], about: T, **named: Any) -> None:
    """Raise UsageError for the first row that applies. `named`: further values for its texts."""
    for row in rows:
        results = [condition(about) for condition in row.when]
        if all(results):
            given = [result for result in results if isinstance(result, list)]
            option, other = (next(iter(flags), "") for flags in (*given, [], [])[:2])
            words = {**named, "option": option, "other": other}
            if given:
                words |= {"options": listed(given[0]), "them": "it" if len(given[0]) == 1 else "them"}
            raise UsageError(row.what.format(**words), row.use.format(**words))
