import pytest

from gputopo.values.errors import UsageError
from gputopo.values.run.names import STRATEGIES, read


def test_every_listed_name_is_read_in_any_case() -> None:
    for name in STRATEGIES:
        assert read(name) == read(name.upper()) == STRATEGIES[name]


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    cases: list[tuple[str, str]] = [
        ("mirored", "mirrored"),
        ("centrl", "central"),
        ("xyz", "the strategies are: mirrored"),
    ]
    for name, hint in cases:
        with pytest.raises(UsageError) as refused:
            read(name)
        assert hint in refused.value.hint
