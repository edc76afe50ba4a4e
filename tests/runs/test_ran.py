from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.runs.ran import exchange_words, what_ran
from gputopo.values.run.program import job_of
from gputopo.values.run.spec import Data, Exchange, Precision, RunSpec, Server
from tests.launch.specs import cpu_spec


def job(**changes: object) -> RunSpec:
    found = job_of(msgspec.json.decode(msgspec.json.encode(cpu_spec(**changes))))
    assert isinstance(found, RunSpec)
    return found


def test_a_plain_run_is_reported_in_its_parts() -> None:
    assert what_ran(job()) == {
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
    ran = what_ran(job(variable_update="replicated", ps_device=None, all_reduce="ring#2"))
    assert (ran["all_reduce"], ran["grad_reduce"]) == ("ring#2", "mean")
    assert "ring of copies" in ran["all_reduce_by"]
    assert ran["variables"] == "a copy on each device"


def test_on_one_device_nothing_is_reduced_whatever_was_asked() -> None:
    one = cpu_spec().devices[:1]
    ran = what_ran(job(variable_update="replicated", ps_device=None, all_reduce="ring", devices=one))
    assert (ran["all_reduce"], ran["all_reduce_by"]) == ("ring", "nothing: there is one device")


@pytest.mark.parametrize(
    ("exchange", "words"),
    [
        (Exchange(staged=True), "stale by one"),
        (Exchange(relaxed=True), "previous step"),
        (Exchange(asynchronous=True), "asynchronous"),
        (Exchange(repacking=4), "4 chunks"),
        (Exchange(small_bytes=64), "up to 64 bytes"),
        (Exchange(transfer="fp16"), "float16"),
    ],
)
def test_what_the_exchange_has_beside_the_plain_form_is_reported(exchange: Exchange, words: str) -> None:
    (reported,) = exchange_words(job(exchange=exchange))
    assert words in reported


def test_between_hosts_small_gradients_are_joined_without_a_word_unless_it_was_asked_for() -> None:
    servers = [Server(host=f"n{rank}", address=f"n{rank}:2222", cores=1) for rank in (0, 1)]
    joined = Exchange(small_bytes=64)
    assert exchange_words(job(servers=servers, exchange=joined)) == []
    asked = {"agg_small_grads_max_bytes": "64"}
    assert exchange_words(job(servers=servers, exchange=joined, asked=asked)) != []


def test_groups_are_reported_where_they_are_used() -> None:
    groups = Exchange(groups=((0, 1), (2, 3)))
    assert exchange_words(job(exchange=groups)) == []
    assert exchange_words(job(exchange=groups, all_reduce="hierarchical")) == ["groups 0,1 | 2,3"]


def test_other_tasks_and_trainers_are_reported_as_what_they_are() -> None:
    assert what_ran(job(method="kuza55"))["trainer"] == "method kuza55"
    assert what_ran(job(strategy="mirrored"))["trainer"] == "strategy mirrored"
    assert "variables" not in what_ran(job(strategy="mirrored"))
    assert set(what_ran(job(task="input"))) == {"task", "data"}
    forward = what_ran(job(task="forward", ps_device="/CPU:1"))
    assert (forward["variable_update"], forward["variables"]) == ("parameter_server", "/CPU:1")
    assert not {"optimizer", "grad_reduce", "trainer"} & set(forward)


def test_the_loss_scale_belongs_to_fp16_and_data_show_where_they_come_from() -> None:
    scaled = job(precision=Precision(compute="fp16", auto_loss_scale=True))
    assert what_ran(scaled)["loss_scale"] == "auto"
    real = job(data=Data(folder="/d", name="imagenet", distortions=True))
    assert what_ran(real)["data"] == "imagenet from /d, distorted"
    fed = job(data=Data(source="python", feed="queue"))
    assert what_ran(fed)["data"] == "synthetic, made in Python, queue"
    cached = job(data=Data(folder="/d", name="imagenet", cache="decoded"))
    assert what_ran(cached)["data"] == "imagenet from /d, cached decoded"


def test_what_an_older_spec_lacks_has_its_default() -> None:
    ran = what_ran(job_of({"model": "trivial", "data": {"folder": "/d", "cache": "raw"}}))
    assert (ran["task"], ran["precision"], ran["data"]) == ("train", "fp32", "examples from /d, cached raw")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from(
    ["model", "task", "data", "precision", "exchange", "optimization", "all_reduce", "variable_update"]
)


@given(spec=st.dictionaries(NAMES, JSON))
def test_a_spec_of_any_shape_can_be_described(spec: dict[str, Any]) -> None:
    assert isinstance(what_ran(job_of(spec)), dict)
