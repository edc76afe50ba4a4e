"""`gputopo explain`: reference pages, findings, models, options; `gputopo models`: the models to train."""

import os
import shutil
from typing import Annotated

from gputopo import integrations, pages
from gputopo.cli.printing import emit, is_terminal
from gputopo.values.errors import UsageError
from gputopo.values.option import Option, nearest, shown

# Not measured; chosen because longer topics are messages that pages quote.
_WORDS_OF_A_NAME = 3
_SCHEMA, _INTEGRATIONS = "schema", "integrations"


def explain(
    topic: Annotated[
        tuple[str, ...],
        Option(
            "[TOPIC...]",
            "A page, a finding, a model, a reduction or an option; schema NAME; integrations FILE",
            default="all pages",
            repeated=True,
        ),
    ] = (),
    *,
    search: Annotated[
        str | None, Option("--search", "Show the lines of all pages that contain a word", value="WORD")
    ] = None,
) -> None:
    """Show a reference page, or explain a finding, an Xid (79), a model, a reduction or an option.

    Exit codes: 0 fine; 2 unknown topic.
    """
    if search is not None and topic:
        raise UsageError("--search looks in all pages, not in one", "remove the topic or --search")
    if search is not None:
        lines = pages.search(search)
        if not lines:
            raise UsageError(f"no page contains {shown(search)}", "gputopo explain lists the pages")
        # As grep prints them.
        emit("".join(f"{page}: {line}\n" for page, of_page in lines.items() for line in of_page))
    elif not topic:
        emit(_pages())
    elif topic[0] == _SCHEMA:
        _schema(" ".join(topic[1:]))
    elif topic[0] == _INTEGRATIONS and len(topic) > 1:
        name = " ".join(topic[1:])
        if name not in integrations.FILES:
            raise UsageError(f"there is no file {shown(name)}", f"the files: {', '.join(integrations.FILES)}")
        emit(integrations.read(name))
    else:
        _topic(" ".join(topic))


def _topic(topic: str) -> None:
    text = pages.explain(topic.partition("=")[0] if topic.startswith("-") else topic)
    if text is None:
        names = [name for name in pages.topics() if name.count(" ") < _WORDS_OF_A_NAME]  # no messages
        near = nearest(topic.lstrip("-"), names)
        hint = f"did you mean gputopo explain {near[0]}?" if near else "gputopo explain lists the pages"
        raise UsageError(f"there is no page, finding, Xid, model or option {shown(topic)}", hint)
    _show(text)


def _schema(name: str) -> None:
    """Print the JSON Schema of a document, or the names of all documents."""
    from gputopo.cli import schemas

    if name:
        from gputopo.values.schema import encode_pretty

        emit(encode_pretty(schemas.json_schema(name)))
    else:
        emit(schemas.listed())


_LISTED = ("name", "input_shape", "parameters", "parameter_bytes", "multiply_accumulates")


def models(
    *, as_json: Annotated[bool, Option("--json", "Print the built-in models as JSON")] = False
) -> None:
    """List the models that can be trained, with their sizes.

    Exit codes: 0 fine.
    """
    if as_json:
        from gputopo.values import schema
        from gputopo.workload import require_workload, workload_names

        known = map(require_workload, workload_names())
        listed = [
            {name: getattr(model, name) for name in _LISTED}
            | {"batch": model.gpu_batch, "source": model.source, "note": model.note}
            for model in known
        ]
        emit(schema.encode_pretty({"schema": "gputopo.models/1", "models": listed}))
        return
    _show(pages.read("models"))


def _pages() -> str:
    width = max(map(len, pages.PAGES))
    listed = "".join(f"{name:{width}}  {pages.title(name).partition(': ')[2]}\n" for name in pages.PAGES)
    also = (
        "a finding (pcie.slot_narrow), an Xid (79), a model (alexnet), a reduction, an option (--ps), "
        "schema (of the JSON)"
    )
    return f"{listed}\nAlso: {also}. --search WORD looks in all pages.\n"


def _show(markdown: str) -> None:
    """Print Markdown unchanged; on a terminal, laid out for its width."""
    if not is_terminal():
        emit(markdown)
        return
    from gputopo.cli.reference_page import page_text

    text = page_text(markdown)
    if text.count("\n") < shutil.get_terminal_size().lines:
        emit(text)
        return
    import pydoc  # its pager is $PAGER, else less

    os.environ.setdefault("LESS", "FRX")  # as git does: colours pass; a short page is not cleared
    pydoc.pager(text)
