"""Tests of gputopo."""

from typing import TypeVar

_T = TypeVar("_T")


def there(value: _T | None) -> _T:
    """Return a value, which must not be None."""
    assert value is not None
    return value
