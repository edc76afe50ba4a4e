"""`gputopo explain`: reference pages, findings, models and options; `gputopo models`: what can be trained."""

import sys
from typing import Annotated

import typer

from gputopo import pages
from gputopo.cli.choices import nearest, shown
from gputopo.cli.printing import emit
from gputopo.values.errors import UsageError


def explain(
    topic: Annotated[
        str | None, typer.Argument(help="A page, a finding, a model or an option.", metavar="[TOPIC]")
    ] = None,
) -> int:
    """Show a reference page, or what a finding, a model or an option is.

    Without a topic: the list of pages.
    """
    if topic is None:
        width = max(map(len, pages.PAGES))
        lines = [f"{name:{width}}  {pages.title(name).partition(': ')[2]}\n" for name in pages.PAGES]
        emit(
            "".join(
                [
                    *lines,
                    "\ngputopo explain TOPIC: a page, a finding (pcie.slot_narrow), a model or an option\n",
                ]
            )
        )
        return 0
    found = pages.explain(topic)
    if found is None:
        near = nearest(topic, pages.topics())
        hint = f"did you mean gputopo explain {near[0]}?" if near else "gputopo explain lists the pages"
        raise UsageError(f"no page, finding, model or option {shown(topic)}", hint)
    show_markdown(found)
    return 0


def models() -> int:
    """List the models that can be trained."""
    show_markdown(pages.read("models"))
    return 0


def show_markdown(text: str) -> None:
    """Print Markdown as it is; on a terminal laid out for its width."""
    if not sys.stdout.isatty():
        emit(text)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    with console.capture() as capture:
        console.print(Markdown(text))
    emit(capture.get())
