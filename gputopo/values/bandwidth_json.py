"""The JSON form of samples (`gputopo.bandwidth/1`): each sample has the keys of all kinds.

A key that a kind does not have is null, false or empty.
"""

from collections.abc import Callable
from types import GenericAlias
from typing import Any, get_args

import msgspec

from gputopo.values.bandwidth import Between, Expectation, Measured, Sample, Samples


class _OfAnyKind(Between, frozen=True, kw_only=True):
    """The keys that are not fields of the kinds, or have another type in some of them."""

    median_us: float | None = None
    expected_gb_per_s: float | None = None
    expected_low_gb_per_s: float | None = None
    expected_source: str | None = None


_TYPES: dict[str, type[Sample]] = {
    kind: sample_type
    for sample_type in get_args(Sample)
    for kind in get_args(sample_type.__annotations__["kind"])
}
_FIELDS = {
    field.name: field
    for sample_type in (*get_args(Sample), _OfAnyKind)
    for field in msgspec.structs.fields(sample_type)
}
# In the order of the document.
_KEYS = (
    "kind",
    "source",
    "destination",
    "bytes",
    "pinned",
    "method",
    "path",
    "group",
    "with_reverse",
    "numa_node",
    "numa_wanted",
    "median_gb_per_s",
    "repeats_gb_per_s",
    "spread_percent",
    "median_us",
    "repeats_us",
    "discarded_gb_per_s",
    "discarded_because",
    "conditions",
    "expected_gb_per_s",
    "expected_low_gb_per_s",
    "expected_source",
    "bus_gb_per_s",
    "algorithm",
    "model",
    "ranks",
    "hosts",
    "in_place",
    "data_type",
    "reduction",
    "root",
    "nccl",
    "tool",
    "transport",
    "streams",
    "run",
    "runs",
    "invalid",
)
_Keys = msgspec.defstruct(
    "Sample",
    [(key, _FIELDS[key].type, msgspec.field(default=_FIELDS[key].default)) for key in _KEYS],
    module=__name__,
    namespace={"__doc__": Measured.__doc__},
)
JSON_TYPE = GenericAlias(list, (_Keys,))  # of `Samples`


def to_json(samples: Samples) -> list[msgspec.Struct]:
    """Return the samples with the keys of all kinds."""
    return list(map(_to_json, samples))


def from_json(plain: Any, dec_hook: Callable[[type[Any], Any], Any]) -> Samples:
    """Read the JSON of samples. Raises ValidationError."""
    try:
        keys_of_each = msgspec.convert(plain, JSON_TYPE, dec_hook=dec_hook)
    except msgspec.ValidationError as error:
        raise msgspec.ValidationError(str(error).replace("`$", "`$.samples")) from error
    return Samples(map(_from_json, keys_of_each))


def _to_json(sample: Sample) -> msgspec.Struct:
    fields = msgspec.structs.asdict(sample)
    source, rate, low, _ = fields.pop("expectation", Expectation())
    expected = {"expected_source": source or None, "expected_gb_per_s": rate, "expected_low_gb_per_s": low}
    return _Keys(**fields, **expected)


def _from_json(keys: Any) -> Sample:
    source, rate, low = keys.expected_source or "", keys.expected_gb_per_s, keys.expected_low_gb_per_s
    fields = msgspec.structs.asdict(keys) | {"expectation": Expectation(source, rate, low)}
    return msgspec.convert(fields, _TYPES[keys.kind])
