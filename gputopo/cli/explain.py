"""`gputopo explain`: reference pages, findings, models, options; `gputopo models`: the models to train."""

from gputopo import pages
from gputopo.cli.printing import emit, is_terminal
from gputopo.values.errors import UsageError
from gputopo.values.option import nearest, shown


def explain(
    topic: str | None = None,
) -> None:
    """Show a reference page, or explain a finding, an Xid (79), a model, a reduction or an option.

    Exit codes: 0 fine; 2 unknown topic.
    """
    if topic is None:
        emit(_pages())
        return
    found = pages.explain(topic)
    if found is None:
        near = nearest(topic.lstrip("-"), pages.topics())
        hint = f"did you mean gputopo explain {near[0]}?" if near else "gputopo explain lists the pages"
        raise UsageError(f"there is no page, finding, Xid, model or option {shown(topic)}", hint)
    _show(found)


_LISTED = ("name", "input_shape", "parameters", "parameter_bytes", "multiply_accumulates")


def models(*, as_json: bool = False) -> None:
    """List the models that can be trained, with their sizes.

    Exit codes: 0 fine.
    """
    if as_json:
        from gputopo.values import schema
        from gputopo.workload import workloads

        found = map(workloads.require, workloads.names())
        listed = [
            {name: getattr(one, name) for name in _LISTED}
            | {"batch": one.gpu_batch, "source": one.source, "note": one.note}
            for one in found
        ]
        emit(schema.encode_pretty({"schema": "gputopo.models/1", "models": listed}))
        return
    _show(pages.read("models"))


def _pages() -> str:
    width = max(map(len, pages.PAGES))
    listed = "".join(f"{name:{width}}  {pages.title(name).partition(': ')[2]}\n" for name in pages.PAGES)
    also = "a finding (pcie.slot_narrow), an Xid (79), a model (alexnet), a reduction, an option (--ps)"
    return f"{listed}\nAlso: {also}.\n"


def _show(markdown: str) -> None:
    """Print Markdown as it is; on a terminal laid out for its width."""
    if not is_terminal():
        emit(markdown)
        return
    from gputopo.report.reference import page_text

    emit(page_text(markdown))
