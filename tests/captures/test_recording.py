import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.captures import read_text
from gputopo.values import schema
from gputopo.values.bandwidth import Bandwidth, CopyRate, Failure, Samples
from gputopo.values.ends import End
from gputopo.values.errors import InputError
from gputopo.values.machine import Gpu, Hop, Host, Link, Machine, Nic, NumaNode, PowerW, Unread

BOX = Machine(
    source="live",
    host=Host(sockets=2, numa_nodes=(NumaNode(index=0, cpus="0-9"),)),
    gpus=(Gpu(index=0, uuid="GPU-1", power_w=PowerW(draw=30.5)), Gpu(index=1)),
    links=(Link(a=0, b=1, hop=Hop.PIX, nvlinks=0),),
    nics=(Nic(index=0, hops={"gpu:0": Hop.SYS}),),
    missing={"gpus[1].power_w.draw": "NOT_SUPPORTED"},
    unread=(Unread(source="live", line=1, text="?"),),
)


def test_a_recording_reads_back_as_the_same_machine() -> None:
    for text in (schema.encode(BOX).decode(), schema.encode_pretty(BOX)):
        assert read_text(text, origin="box.json") == BOX


def test_an_inspection_gives_its_machine_and_its_findings_are_left() -> None:
    text = json.dumps(
        {
            "schema": "gputopo.inspect/1",
            "machine": schema.to_builtins(BOX),
            "findings": [{"id": "x"}],
            "later": 1,
        }
    )
    assert read_text(text, origin="x") == BOX


MEASURED = Bandwidth(
    source="live",
    samples=Samples(
        (CopyRate(kind="h2d", source=End("host"), destination=End("gpu:1"), median_gb_per_s=12.5),)
    ),
    failures=(
        Failure(
            kind="d2h", source=End("gpu:0"), destination=End("host"), reason="TIMED_OUT", says="no answer"
        ),
    ),
    level="quick",
)


def printed(**changes: object) -> str:
    """Write what `gputopo bandwidth --json` prints."""
    document = schema.to_builtins(MEASURED) | {"machine": schema.to_builtins(BOX), "findings": []}
    return json.dumps(document | changes)


def test_a_measurement_gives_its_machine_with_the_bandwidth_in_it() -> None:
    machine = read_text(printed(), origin="box.json")
    assert machine == msgspec.structs.replace(BOX, bandwidth=MEASURED)
    assert read_text(schema.encode_pretty(machine), origin="box.json") == machine


def test_a_measurement_without_a_machine_is_of_the_gpus_it_names() -> None:
    for text in (schema.encode(MEASURED).decode(), printed(machine=None)):
        machine = read_text(text, origin="box.json")
        assert [gpu.index for gpu in machine.gpus] == [0, 1]
        assert machine.bandwidth == MEASURED


@pytest.mark.parametrize(
    ("sample", "what"),
    [
        ({"source": "gpu:7"}, "box.json: its bandwidth is of GPU 7, which it does not have"),
        ({"repeats_us": [-0.5]}, 'has a number that cannot be: "repeats_us": [-0.5'),
        ({"kind": "teleport"}, "is not a valid gputopo.bandwidth/1"),
    ],
)
def test_a_measurement_that_cannot_be_is_refused(sample: dict[str, object], what: str) -> None:
    good = schema.to_builtins(MEASURED)["samples"][0]
    with pytest.raises(InputError) as caught:
        read_text(printed(samples=[good | sample]), origin="box.json")
    assert what in caught.value.what


def test_only_temperatures_are_below_zero() -> None:
    gpu = {"index": 0, "temperature_c": {"gpu": -3, "margin": -1}, "memory_mib": {"used": 5}}
    text = json.dumps({"schema": "gputopo.machine/1", "source": "x", "gpus": [gpu]})
    assert read_text(text, origin="x").gpus[0].temperature_c.gpu == -3
    inspected = (
        f'{{"schema": "gputopo.inspect/1", "machine": {text}, "findings": [{{"evidence": {{"x": -5}}}}]}}'
    )
    assert read_text(inspected, origin="x").gpus[0].memory_mib.used == 5  # findings are made again
    with pytest.raises(InputError, match='cannot be: "used": -5'):
        read_text(text.replace(": 5}", ": -5}"), origin="x")


MACHINE = '{"schema": "gputopo.machine/1", "source": "x", '
PAIR = '{"a": 0, "b": 1}'
UNKNOWN, AGAIN, OTHER = "another version of gputopo", "write the file again", "inspect --record"


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ('{"schema": "gputopo.inspect/1", "machine": {"sou', "is not complete JSON", "copy the file again"),
        ('{"schema": "gputopo.machine/2", "source": "live"}', UNKNOWN, "update gputopo"),
        ('{"schema": "gputopo.plan/1"}', "holds gputopo.plan/1, which is not a machine", OTHER),
        (f'{MACHINE}"gpus": [{{"index": 0}}], "links": [{{"a": 0, "b": 3}}]}}', "refers to GPU 3", OTHER),
        (
            f'{MACHINE}"gpus": [{{"index": 0}}, {{"index": 1}}], "links": [{", ".join([PAIR] * 2)}]}}',
            "the link 0-1 twice",
            OTHER,
        ),
        ('{"schema": "gputopo.machine/1", "x": ' + "[" * 100_000, "nested too deep", OTHER),
    ],
)
def test_a_recording_that_cannot_be_used_is_refused_in_two_lines(text: str, what: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        read_text(text, origin="box.json")
    assert what in caught.value.what
    assert "box.json" in caught.value.what
    assert hint in caught.value.hint
    assert "\n" not in caught.value.what + caught.value.hint


@given(st.data())
def test_a_recording_cut_anywhere_is_refused_and_never_half_read(data: st.DataObject) -> None:
    text = schema.encode(BOX).decode()
    with pytest.raises(InputError, match="not complete JSON"):
        read_text(text[: data.draw(st.integers(1, len(text) - 1))], origin="x")
