"""`gputopo explain schema`: what is printed is valid by the schema that is printed."""

import json

import jsonschema

from tests.cli.conftest import Call

FROM = ("--from", "az-2x-m60")
PRINTED = {
    "inspect": ("inspect", *FROM),
    "diff": ("inspect", *FROM, "--diff", "dgx1-p100"),
    "bandwidth": ("bandwidth", *FROM),
    "plan": ("plan", *FROM, "--model", "alexnet", "--num-gpus", "2", "--candidates", "1"),
    "dryrun": ("run", *FROM, "--model", "alexnet", "--dry-run"),
    "study": ("report", "--published", "lambda-cpu"),
}


def test_what_a_command_prints_is_valid(call: Call) -> None:
    for name, words in PRINTED.items():
        schema = json.loads(call("explain", "schema", name).out)
        document = json.loads(call(*words, "--json").out)
        valid = jsonschema.Draft202012Validator(schema)
        assert [error.message for error in valid.iter_errors(document)] == []
        assert not valid.is_valid({**document, "schema": "gputopo.other/1"})


def test_all_documents_are_listed_and_have_a_schema(call: Call) -> None:
    names = [line.split()[0] for line in call("explain", "schema").out.splitlines()]
    assert {"machine", "result", "event", "screen", "sweep", "fleet", *PRINTED} <= set(names)
    for name in names:
        schema = json.loads(call("explain", "schema", name).out)
        assert schema["title"] == f"gputopo {name}"
        assert schema["$defs"]
