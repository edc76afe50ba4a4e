"""Names in outputs of `nvidia-smi` that have no place in a Machine: known ones are passed over."""

import pytest

from gputopo.captures import read_text
from tests.captures.smi.test_xml import log


def written(dialect: str, name: str) -> str:
    """Return an output with a value of this name."""
    path = name.split("/")
    if dialect == "csv":
        return f"index, name, {name}\n0, A, 1\n"
    if dialect == "xml":
        return log("".join(f"<{tag}>" for tag in path) + "1" + "".join(f"</{tag}>" for tag in path[::-1]))
    lines = [f"{'    ' * depth}{word}" for depth, word in enumerate(path, 1)]
    return "GPU 00000000:01:00.0\n    Fan Speed : 30 %\n" + "\n".join(lines) + " : 1\n    Minor Number : 1\n"


@pytest.mark.parametrize(
    ("dialect", "name", "known"),
    [
        ("xml", "retired_pages/double_bit_retirement/retired_page_addresses", True),
        ("xml", "serial_killer", False),
        ("xml", "fb_memory_usage", False),
        ("text", "PCI/Atomic Caps Outbound", True),
        ("text", "Deferred Clocks/Graphics", False),
        ("csv", "fabric.clusterUuid", True),
        ("csv", "fabricated", False),
    ],
)
def test_a_known_name_without_a_place_covers_what_is_below_it(dialect: str, name: str, known: bool) -> None:
    assert (read_text(written(dialect, name), origin="x").unread == ()) == known
