"""The ends of a measurement: what each text is, and that it is written as it was read."""

import pickle

import pytest

from gputopo.values import schema
from gputopo.values.bandwidth import Bandwidth, CopyRate, Samples
from gputopo.values.ends import HOST, End, gpus_in, renumbered
from gputopo.values.errors import InputError


@pytest.mark.parametrize(
    ("text", "gpus", "gpu", "node", "host"),
    [
        ("gpu:3", (3,), 3, None, None),
        ("gpu:0,2", (0, 2), None, None, None),
        ("gpu:", (), None, None, None),
        ("cpu:0,1", (), None, None, None),
        ("gpus", (), None, None, None),
        ("node:1", (), None, 1, None),
        ("host", (), None, None, None),
        ("host:", (), None, None, None),
        ("host:n3", (), None, None, "n3"),
    ],
)
def test_an_end_is_what_its_text_is(
    text: str, gpus: tuple[int, ...], gpu: int | None, node: int | None, host: str | None
) -> None:
    end = End(text)
    assert (end, end.gpus, end.gpu, end.node, end.host) == (text, gpus, gpu, node, host)
    assert end.name == (host or text)
    assert pickle.loads(pickle.dumps(end)).gpus == gpus


def test_what_goes_from_one_end_to_another_has_a_pair_or_a_gpu_of_the_host() -> None:
    up = CopyRate(kind="h2d", source=HOST, destination=End.of_gpus(3))
    assert (up.gpus, up.pair, up.host_gpu) == ((3,), None, 3)
    direct = CopyRate(kind="p2p_direct", source=End.of_gpus(2), destination=End.of_gpus(0))
    assert (direct.gpus, direct.pair, direct.host_gpu) == ((2, 0), (2, 0), None)
    inside = CopyRate(kind="d2d_local", source=End.of_gpus(1), destination=End.of_gpus(1))
    assert (inside.gpus, inside.pair, inside.host_gpu) == ((1,), None, None)


def test_the_gpus_of_a_text_get_new_numbers() -> None:
    assert renumbered("ring gpus:0,1, gpu:0", {0: 5}) == "ring gpus:1,5, gpu:5"
    assert renumbered("node:0, host:n0", {0: 5}) == "node:0, host:n0"
    assert gpus_in("ring gpus:0,1, gpu:7") == {0, 1, 7}


def test_in_json_an_end_is_its_text() -> None:
    samples = (CopyRate(kind="h2d", source=HOST, destination=End.of_gpus(3)),)
    document = schema.encode(Bandwidth(source="live", samples=Samples(samples)))
    assert b'"source":"host","destination":"gpu:3"' in document
    read = schema.decode(document, Bandwidth, origin="a file").samples[0]
    assert (read.destination.gpu, read) == (3, samples[0])
    with pytest.raises(InputError, match=r"Expected `str`, got `int` - at `\$.samples\[0\].source`"):
        schema.decode(document.replace(b'"host"', b"4"), Bandwidth, origin="a file")
