"""`gputopo explain schema`: what is printed is valid by the schema that is printed."""

import json

import jsonschema
import pytest

from tests.cli.conftest import Call

FROM = ("--from", "7gforce")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("inspect", ("inspect", *FROM)),
        ("diff", ("inspect", *FROM, "--diff", "dgx1-p100")),
        ("bandwidth", ("bandwidth", *FROM)),
        ("plan", ("plan", *FROM, "--model", "alexnet", "--num-gpus", "2")),
        ("dryrun", ("run", *FROM, "--model", "alexnet", "--dry-run")),
        ("study", ("report", "--published", "keras-multi-gpu")),
    ],
)
def test_what_a_command_prints_is_valid(name: str, words: tuple[str, ...], call: Call) -> None:
    schema = json.loads(call("explain", "schema", name).out)
    jsonschema.Draft202012Validator.check_schema(schema)
    document = json.loads(call(*words, "--json").out)
    jsonschema.validate(document, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**document, "schema": "gputopo.other/1"}, schema)


def test_all_documents_are_listed_and_have_a_schema(call: Call) -> None:
    names = [line.split()[0] for line in call("explain", "schema").out.splitlines()]
    assert {"machine", "result", "event", "screen", "sweep", "fleet"} <= set(names)
    for name in names:
        jsonschema.Draft202012Validator.check_schema(json.loads(call("explain", "schema", name).out))


@pytest.mark.parametrize("name", ["reslut", "gputopo.result/1"])
def test_an_unknown_document_is_refused_with_the_nearest(name: str, call: Call) -> None:
    done = call("explain", "schema", name)
    assert (done.code, done.err.splitlines()[1].strip()) == (2, "did you mean result?")
