"""Options as data: a theme of a command is a table of offers, and the command's signature is made of them."""

import inspect
import keyword
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from gputopo.cli.choices import shown
from gputopo.values.errors import InputError, UsageError

MOST = 2**31 - 1  # TensorFlow's sizes and seeds are C ints
MOST_FLOAT = 3.4e38  # TensorFlow computes with float32, where more is infinite

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class Offer:
    """An option. `option` is how it is written; `kind`: str, int, float, bool (a flag) or list[str].

    One that was not given is None, False for a flag, () for a list, or its `default`.
    """

    option: str
    kind: Any
    metavar: str | None
    help: str
    default: Any = None

    @property
    def name(self) -> str:
        """The name of the command's parameter: `--batch-size` is batch_size, `--async` async_."""
        name = self.option.removeprefix("--").replace("-", "_")
        return f"{name}_" if keyword.iskeyword(name) else name

    @property
    def unset(self) -> Any:
        """What the command gets where it was not given."""
        return False if self.kind is bool else self.default

    def parameter(self, theme: str) -> inspect.Parameter:
        """Give the parameter for typer, which shows it under `theme` in the help."""
        metavar = None if self.kind is bool else self.metavar
        told = typer.Option(self.option, metavar=metavar, help=self.help, rich_help_panel=theme)
        kind = self.kind if self.kind is bool or self.default is not None else self.kind | None
        return inspect.Parameter(
            self.name, inspect.Parameter.KEYWORD_ONLY, default=self.unset, annotation=Annotated[kind, told]
        )


def with_offers(
    themes: Mapping[str, Iterable[Offer]], first: Iterable[inspect.Parameter] = ()
) -> Callable[[Command], Command]:
    """Give a command that takes `**typed` the signature of these parameters and themes."""
    offered = [offer.parameter(theme) for theme, offers in themes.items() for offer in offers]
    signature = inspect.Signature([*first, *offered])

    def decorate(command: Command) -> Command:
        vars(command)["__signature__"] = signature
        return command

    return decorate


def at_least(lowest: int, offer: Offer, value: int | None) -> int | None:
    """Give a whole number from `lowest` to MOST; None stays. Raises UsageError."""
    if value is not None and value < lowest:
        raise UsageError(f"{offer.option} cannot be {shown(str(value))[1:-1]}", f"give {lowest} or more")
    if value is not None and value > MOST:
        raise UsageError(f"{offer.option} cannot be {shown(str(value))[1:-1]}", f"give {MOST} at most")
    return value


def number(
    offer: Offer, value: float | None, *, least: float = 0.0, above: bool = False, below: float = math.inf
) -> float | None:
    """Give a number from `least` (or above it), less than `below`, and one for float32; None stays.

    Raises UsageError.
    """
    if value is None:
        return None
    low = value <= least if above else value < least
    if low or value >= below or not value <= MOST_FLOAT:
        lowest = f"above {least:g}" if above else f"from {least:g}"
        highest = f" to {MOST_FLOAT:g}" if math.isinf(below) else f", below {below:g}"
        raise UsageError(f"{offer.option} cannot be {value:g}", f"give a number {lowest}{highest}")
    return value


def folder_of(offer: Offer, text: str, *, way: str = "name a folder, or a place for a new one") -> Path:
    """Give the absolute path of a folder that is there or can be made: the worker runs elsewhere.

    Raises UsageError for no name at all, InputError where something else has the name (`way`: what to do
    then), or a run, which is written in UTF-8, could not name it.
    """
    if not text.strip():
        raise UsageError(f"{offer.option} names no folder: it is empty", "name a folder; . is this one")
    try:
        path = Path(text).expanduser().absolute()
        taken = path.exists() and not path.is_dir()
    except (OSError, RuntimeError) as error:  # a name too long, a place that may not be seen, ~nobody
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(
            f"{offer.option} {shown(text)} cannot be looked at: {why}", "name another folder"
        ) from error
    if taken:
        raise InputError(f"{offer.option} {text} is not a folder", way)
    if not is_utf8(str(path)):
        lies = "lies in a folder whose name is" if is_utf8(text) else "is"
        raise InputError(
            f"{offer.option} {shown(text)} {lies} no UTF-8, in which a run is written down",
            "give the folder another name, or name it by a symbolic link that has one",
        )
    return path


def is_utf8(text: str) -> bool:
    """Tell whether text can be written down as UTF-8: a path from the command line may hold other bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def whole(offer: Offer, text: str, lowest: int, also: str) -> int:
    """Read a whole number of an option that takes a word too, which `also` names. Raises UsageError."""
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text) >= lowest):
        raise UsageError(f"{offer.option} cannot be {shown(text)}", f"give {lowest} or more, or {also}")
    return int(text)


def given(offers: Iterable[Offer], typed: Mapping[str, Any]) -> list[Offer]:
    """Give the offers that were taken: typed with another value than that of an option not given."""
    return [offer for offer in offers if typed[offer.name] not in (offer.unset, [], ())]
