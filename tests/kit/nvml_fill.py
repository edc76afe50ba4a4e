"""Writes the double's answers through the ctypes arguments that pynvml hands to a call."""

from typing import Any

SUCCESS, INVALID_ARGUMENT, NOT_SUPPORTED, INSUFFICIENT_SIZE = 0, 2, 3, 7


class Code(int):
    """A return code instead of a value."""


Answer = Any  # a number, bytes, a tuple of numbers, a dict of struct fields, a list of items, None or a Code


def pointed_at(reference: Any) -> Any:
    """Return the object behind ctypes.byref, as pynvml passes it."""
    return reference._obj


def plain_number(arg: Any) -> int | None:
    """Return an argument's number, or None for an output argument: byref(...), an array, a null pointer."""
    if isinstance(arg, int):
        return arg
    value = getattr(arg, "value", None)
    return value if isinstance(value, int) else None


def give(answer: Answer, outputs: list[Any]) -> int:
    """Write an answer through the call's output arguments and return the return code."""
    if answer is None:
        return NOT_SUPPORTED
    if isinstance(answer, Code):
        return int(answer)
    if isinstance(answer, list):
        return give_items(answer, *outputs)
    if isinstance(answer, bytes):
        outputs[0].value = answer
    elif isinstance(answer, dict):
        for name, value in answer.items():
            setattr(pointed_at(outputs[0]), name, value)
    else:
        for output, value in zip(outputs, answer if isinstance(answer, tuple) else (answer,), strict=True):
            pointed_at(output).value = value
    return SUCCESS


def give_items(items: list[Any], count: Any, array: Any) -> int:
    """Fill an array whose size the caller gives; without an array, or if it is too small, only the count."""
    room, pointed_at(count).value = pointed_at(count).value, len(items)
    if array is None or room < len(items):
        return INSUFFICIENT_SIZE if items else SUCCESS
    for place, item in enumerate(items):
        if isinstance(item, dict):
            for name, value in item.items():
                setattr(array[place], name, value)
        else:
            array[place] = item
    return SUCCESS


def give_bits(numbers: Any, words: Any, size: int) -> int:
    if max(numbers, default=0) >= 64 * size:
        return INSUFFICIENT_SIZE
    for number in numbers:
        pointed_at(words)[number // 64] |= 1 << number % 64
    return SUCCESS
