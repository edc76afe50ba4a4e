from typing import Any

import msgspec
import pytest

from gputopo.runs import summarise
from gputopo.values.run.events import RunStarted
from gputopo.values.run.spec import Data, Exchange, Precision, Server
from tests.launch.specs import cpu_spec


def what_ran(spec: dict[str, Any]) -> dict[str, Any]:
    """What the result of a run with this spec has about what ran."""
    started = RunStarted(time_s=0.0, host="h", spec=spec, devices=(), backend="cpu")
    return summarise([started]).ran


def ran(**changes: object) -> dict[str, Any]:
    return what_ran(msgspec.json.decode(msgspec.json.encode(cpu_spec(**changes))))


def test_a_plain_run_is_reported_in_its_parts() -> None:
    assert ran() == {
        "task": "train",
        "trainer": "own towers",
        "variable_update": "parameter_server",
        "variables": "/CPU:0",
        "grad_reduce": "mean",
        "precision": "fp32",
        "xla": False,
        "data_format": "NHWC",
        "optimizer": "sgd",
        "data": "synthetic, created once on the device",
    }


def test_a_reduction_is_reported_by_what_adds() -> None:
    reduced = ran(variable_update="replicated", ps_device=None, all_reduce="ring#2")
    assert (reduced["all_reduce"], reduced["grad_reduce"]) == ("ring#2", "mean")
    assert "ring of copies" in reduced["all_reduce_by"]
    assert reduced["variables"] == "a copy on each device"


def test_on_one_device_nothing_is_reduced_whatever_was_asked() -> None:
    one = cpu_spec().devices[:1]
    alone = ran(variable_update="replicated", ps_device=None, all_reduce="ring", devices=one)
    assert (alone["all_reduce"], alone["all_reduce_by"]) == ("ring", "nothing: there is one device")


@pytest.mark.parametrize(
    ("exchange", "words"),
    [
        (Exchange(staged=True), "stale by one"),
        (Exchange(asynchronous=True), "asynchronous"),
        (Exchange(small_bytes=64), "up to 64 bytes"),
    ],
)
def test_what_the_exchange_has_beside_the_plain_form_is_reported(exchange: Exchange, words: str) -> None:
    (reported,) = ran(exchange=exchange)["exchange"]
    assert words in reported


def test_between_hosts_small_gradients_are_joined_without_a_word_unless_it_was_asked_for() -> None:
    servers = [Server(host=f"n{rank}", address=f"n{rank}:2222", cores=1) for rank in (0, 1)]
    joined = Exchange(small_bytes=64)
    assert "exchange" not in ran(servers=servers, exchange=joined)
    asked = {"agg_small_grads_max_bytes": "64"}
    assert ran(servers=servers, exchange=joined, asked=asked)["exchange"]


def test_groups_are_reported_where_they_are_used() -> None:
    groups = Exchange(groups=((0, 1), (2, 3)))
    assert "exchange" not in ran(exchange=groups)
    assert ran(exchange=groups, all_reduce="hierarchical")["exchange"] == ["groups 0,1 | 2,3"]


def test_other_tasks_and_trainers_are_reported_as_what_they_are() -> None:
    assert ran(method="kuza55")["trainer"] == "method kuza55"
    assert ran(strategy="mirrored")["trainer"] == "strategy mirrored"
    assert "variables" not in ran(strategy="mirrored")
    assert set(ran(task="input")) == {"task", "data"}
    forward = ran(task="forward", ps_device="/CPU:1")
    assert (forward["variable_update"], forward["variables"]) == ("parameter_server", "/CPU:1")
    assert not {"optimizer", "grad_reduce", "trainer"} & set(forward)


def test_the_loss_scale_belongs_to_fp16_and_data_show_where_they_come_from() -> None:
    assert ran(precision=Precision(compute="fp16", auto_loss_scale=True))["loss_scale"] == "auto"
    for data, words in (
        (Data(folder="/d", name="imagenet", distortions=True), "imagenet from /d, distorted"),
        (Data(source="python", feed="queue"), "synthetic, made in Python, queue"),
        (Data(folder="/d", name="imagenet", cache="decoded"), "imagenet from /d, cached decoded"),
    ):
        assert ran(data=data)["data"] == words


def test_what_an_older_spec_lacks_has_its_default() -> None:
    old = what_ran({"model": "trivial", "data": {"folder": "/d", "cache": "raw"}})
    assert (old["task"], old["precision"], old["data"]) == ("train", "fp32", "examples from /d, cached raw")
