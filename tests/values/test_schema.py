import json
import os
from pathlib import Path

import pytest

from gputopo.values import schema
from gputopo.values.errors import ExitCode, FullDiskError, InputError
from gputopo.values.machine import Gpu, Hop, Link, Machine
from tests.launch.train.small_disk import small_disk

BOX = Machine(source="live", gpus=(Gpu(index=0), Gpu(index=1)), links=(Link(a=0, b=1, hop=Hop.PIX),))


def test_every_document_begins_with_its_kind() -> None:
    assert schema.encode(BOX).startswith(b'{"schema":"gputopo.machine/1"')
    assert schema.to_builtins(BOX)["schema"] == "gputopo.machine/1"
    assert json.loads(schema.encode_pretty(BOX))["links"][0]["hop"] == "PIX"
    assert schema.encode_pretty(BOX).endswith("}\n")


def test_what_is_written_reads_back_the_same() -> None:
    for text in (schema.encode(BOX), schema.encode_pretty(BOX)):
        assert schema.decode(text, Machine, origin="x") == BOX


def test_the_kind_of_a_document_is_reported_without_reading_it_whole() -> None:
    assert schema.schema_of(schema.encode(BOX)) == "gputopo.machine/1"
    for other in ("[]", "7", "{}", "", '{"schema": 7}', b"\xff"):
        assert schema.schema_of(other) is None


def test_unknown_fields_are_ignored() -> None:
    assert schema.decode('{"source": "live", "later": {"x": 1}}', Machine, origin="x") == Machine(
        source="live"
    )


def test_a_document_that_cannot_be_read_states_why() -> None:
    cases: list[tuple[str | bytes, str, str]] = [
        (
            '{"schema": "gputopo.machine/2"}',
            "another version of gputopo: gputopo.machine/2",
            "update gputopo",
        ),
        (
            '{"schema": "gputopo.plan/1"}',
            "holds gputopo.plan/1, not gputopo.machine/1",
            "holds gputopo.machine/1",
        ),
        ('{"source": "li', "is not complete JSON", "copy the file again"),
        ("[]", "is not a valid gputopo.machine/1", "write the file again"),
    ]
    for text, what, hint in cases:
        with pytest.raises(InputError) as caught:
            schema.decode(text, Machine, origin="box.json")
        assert "box.json" in caught.value.what
        assert what in caught.value.what
        assert hint in caught.value.hint


def test_a_file_is_written_whole_with_the_permissions_of_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "box.json"
    schema.write(path, BOX)
    assert schema.decode(path.read_bytes(), Machine, origin="x") == BOX
    plain = tmp_path / "plain"
    plain.touch()
    assert path.stat().st_mode == plain.stat().st_mode


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "box.json"
    path.write_text("before")

    def fail() -> None:
        with schema.replacing(path) as stream:
            stream.write(b"half")
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        fail()
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["box.json"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot write .*: No such file or directory"):
        schema.write(tmp_path / "nowhere" / "box.json", BOX)
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(InputError, match="cannot write"):
        schema.write(folder, BOX)
    with pytest.raises(InputError, match=r"cannot write .*: File name too long"):
        schema.write(tmp_path / ("x" * 300), BOX)
    assert os.listdir(tmp_path) == ["folder"]


def test_a_full_disk_is_no_mistake_of_the_user(tmp_path: Path) -> None:
    with pytest.raises(FullDiskError, match=r"cannot write .*box\.json") as raised, small_disk(10):
        schema.write(tmp_path / "box.json", BOX)
    assert raised.value.exit_code == ExitCode.HARDWARE
    assert "free some space" in raised.value.hint
    assert os.listdir(tmp_path) == []


def test_characters_that_act_on_a_terminal_are_escaped_in_json() -> None:
    name = "a\x9b31m\u202eb\u2066\u2028\x7fé"
    text = schema.encode(Machine(source=name)).decode()
    assert not set(text) & set("\x9b\u202e\u2066\u2028\x7f")
    assert ["\\u" in schema.encode_pretty(Machine(source=one)) for one in "\x7f\x9b\u202eé"] == [True] * 3 + [
        False
    ]
    assert "é" in text
    assert schema.decode(text, Machine, origin="x").source == name
