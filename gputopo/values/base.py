"""The base of all values."""

import msgspec


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all values: immutable, fields by name."""
