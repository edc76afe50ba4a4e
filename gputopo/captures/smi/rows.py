"""What a row of the tables of `nvidia-smi`'s names is (see table.py)."""

from typing import Literal, NamedTuple

Dialect = Literal["xml", "text", "csv"]


class Row(NamedTuple):
    """A fact of the Gpu (its path there), how its value is written (see values.py), and its names."""

    fact: str
    kind: str
    xml: str
    text: str
    csv: str = ""

    def names(self, dialect: Dialect) -> tuple[str, ...]:
        """Give the names in one way to print, the preferred one first."""
        listed = (self.xml, self.text, self.csv)[_PLACE[dialect]].lower().split("|")
        return tuple(dict.fromkeys(name for name in listed if name))


_PLACE: dict[Dialect, int] = {"xml": 0, "text": 1, "csv": 2}
