"""Machines with anything in them, missing facts and odd words included, made from the types of the values."""

import enum
import random
import types
import typing
from typing import Any, Literal

import msgspec
from hypothesis import strategies as st

from gputopo.values import bandwidth
from gputopo.values.ends import End
from gputopo.values.machine import Gpu, Link, Machine, Sample
from gputopo.values.samples import facts_of, of_sample

ADDRESSES = (
    "0000:05:00.0",
    "0000:04:08.0",
    "0000:03:00.0",
    "0000:00:02.0",
    "00000000:05:00.0",
    "0001:05:00.0",
)
WORDS = (
    *ADDRESSES,
    *("", "P0", "P8", "Pfast", "0-7", "on", "NOT_SUPPORTED", "gpus[0].pstate", "GPU_IS_LOST"),
    *(
        "NVIDIA A|B `c` <d>",
        'say "x" \\ y',
        "two\nlines",
        "\x1b[31mred",
        "Grün™",
        "@someone *bold* _it_",
        "a" * 90,
    ),
)
FRACTIONS = (0.0, 2.5, 8.0, 151.0, 1e300, float("nan"), float("inf"), -1.0)


def machines() -> st.SearchStrategy[Machine]:
    """Return Machines whose every field was drawn by its type; what refers to another fits only sometimes."""
    return st.integers(0, 2**32 - 1).map(invented_machine)


def invented_machine(seed: int) -> Machine:
    """Return the Machine of a number: the same number, the same Machine."""
    machine = _value(Machine, random.Random(seed))
    assert isinstance(machine, Machine)
    return machine


def _value(kind: Any, dice: random.Random) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        # Half of what may be missing is.
        return (
            None
            if dice.random() < 0.5
            else _value(dice.choice([a for a in arguments if a is not type(None)]), dice)
        )
    if origin is Literal:
        return dice.choice(arguments)
    if origin is tuple and ... not in arguments:
        return tuple(_value(one, dice) for one in arguments)
    if origin is tuple:
        return tuple(_value(arguments[0], dice) for _ in range(dice.choice((0, 1, 2, 5))))
    if origin is dict:
        return {_value(arguments[0], dice): _value(arguments[1], dice) for _ in range(dice.choice((0, 1, 3)))}
    if kind is Link:
        a = dice.randrange(4)
        return msgspec.structs.replace(_struct(kind, dice, a=a, b=a + 1 + dice.randrange(3)))
    if kind is Sample:
        gpus = [_value(Gpu, dice) for _ in range(dice.choice((0, 1, 2)))]
        few = (dict([*of_sample(facts_of(gpu)).items()][:8]) | {"index": gpu.index} for gpu in gpus)
        return _struct(kind, dice, gpus=tuple(few))
    if kind is bandwidth.Samples:
        kinds = [dice.choice(typing.get_args(bandwidth.Sample)) for _ in range(dice.choice((0, 1, 2, 5)))]
        return bandwidth.Samples(_struct(one, dice) for one in kinds)
    if kind is bandwidth.Expectation:
        hints = typing.get_type_hints(kind)
        return kind(*(_value(hints[name], dice) for name in ("source", "gb_per_s", "low_gb_per_s")))
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _struct(kind, dice)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return dice.choice(list(kind))
    return _plain(kind, dice)


def _struct(kind: type[msgspec.Struct], dice: random.Random, **fixed: Any) -> Any:
    hints = typing.get_type_hints(kind)
    names = [name for name in kind.__struct_fields__ if name not in fixed]
    return kind(**fixed, **{name: _value(hints[name], dice) for name in names})


def _plain(kind: Any, dice: random.Random) -> Any:
    if kind is bool:
        return dice.random() < 0.5
    if kind is int:
        return dice.choice((0, 1, 2, 3, 16, 4096, -1, 2**40))
    if kind is float:
        return dice.choice(FRACTIONS)
    if kind in (str, End):
        return kind(dice.choice(WORDS))
    return 1  # dict[str, Any]
