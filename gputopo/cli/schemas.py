"""JSON Schemas of the documents that commands print and write: `gputopo explain schema result`."""

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from gputopo.values.bandwidth import Samples
from gputopo.values.bandwidth_json import JSON_TYPE
from gputopo.values.errors import UsageError
from gputopo.values.option import nearest, shown
from gputopo.values.subject import Subject


class JsonDocument(NamedTuple):
    """A JSON document: the module and the name of its type, and the command that writes it.

    `has_samples`: whether it has `Samples` of a bandwidth.
    """

    module: str
    type_name: str
    written_by: str
    has_samples: bool = False

    @property
    def type(self) -> Any:
        """The type of the document; reading it imports its module."""
        return getattr(importlib.import_module(self.module), self.type_name)


DOCUMENTS: Mapping[str, JsonDocument] = {
    "machine": JsonDocument("gputopo.values.machine", "Machine", "inspect --record FILE", has_samples=True),
    "inspect": JsonDocument("gputopo.values.finding", "Inspection", "inspect --json", has_samples=True),
    "watched": JsonDocument("gputopo.cli.watch", "Watched", "inspect --watch --json"),
    "diff": JsonDocument("gputopo.values.difference", "Difference", "inspect --diff FILE --json"),
    "fleet": JsonDocument("gputopo.values.finding", "Fleet", "inspect --fleet --json"),
    "bandwidth": JsonDocument(
        "gputopo.cli.bandwidth", "BandwidthReport", "bandwidth --json", has_samples=True
    ),
    "bandwidth_diff": JsonDocument(
        "gputopo.values.difference", "BandwidthDifference", "bandwidth --baseline FILE --json"
    ),
    "plan": JsonDocument("gputopo.values.run.plan", "Plan", "plan --json"),
    "dryrun": JsonDocument("gputopo.launch", "DryRun", "run --dry-run --json"),
    "runspec": JsonDocument("gputopo.values.run.spec", "RunSpec", "run: spec.json in the run folder"),
    "event": JsonDocument("gputopo.values.run.events", "Event", "run: a line of events.jsonl"),
    "result": JsonDocument(
        "gputopo.values.run.result", "Result", "run --json; result.json in the run folder"
    ),
    "repeats": JsonDocument("gputopo.values.run.several_runs", "Repeats", "run --repeats N --json"),
    "screen": JsonDocument("gputopo.values.run.several_runs", "Screen", "screen --json"),
    "sweep": JsonDocument("gputopo.values.run.several_runs", "Sweep", "sweep --json"),
    "study": JsonDocument("gputopo.values.study", "Study", "report --json"),
    "box": JsonDocument("gputopo.values.box", "Box", "report --history --json"),
}


def json_schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a document. Raises UsageError for an unknown name."""
    document = DOCUMENTS.get(name)
    if document is None:
        near = nearest(name.removeprefix("gputopo.").partition("/")[0], DOCUMENTS)
        hint = f"did you mean {near[0]}?" if near else "gputopo explain schema lists the documents"
        raise UsageError(f"there is no document {shown(name)}", hint)

    samples: dict[str, Any] = {"default": []}

    def of_type(kind: type) -> dict[str, Any]:  # of a type that msgspec does not know (values.schema)
        about = {"description": "what a finding is about: a GPU, a pair, a link, the host"}
        return samples if kind is Samples else {"type": "string"} | (about if kind is Subject else {})

    types = (document.type, JSON_TYPE) if document.has_samples else (document.type,)
    (schema, *of_samples), parts = msgspec.json.schema_components(types, schema_hook=of_type)
    samples.update(*of_samples)
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, "title": f"gputopo {name}", **schema, "$defs": parts}


def listed() -> str:
    """Return the names of all documents, one per line, each with the command that writes it."""
    width = max(map(len, DOCUMENTS))
    return "".join(f"{name:{width}}  {document.written_by}\n" for name, document in DOCUMENTS.items())
