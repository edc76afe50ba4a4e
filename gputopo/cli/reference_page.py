"""A reference page for a terminal: rich's Markdown, but code keeps its lines and no table text is cut."""

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Markdown, TableElement
from rich.table import Table
from rich.text import Text


class _Code(CodeBlock):
    """Code exactly as it is, so that it can be copied from the terminal."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(str(self.text).rstrip(), no_wrap=True, overflow="ignore")


class _Table(TableElement):
    """A table whose cells fold where rich would cut them. The first column does not fold."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for part in super().__rich_console__(console, options):
            if isinstance(part, Table):
                for number, column in enumerate(part.columns):
                    column.overflow, column.no_wrap = "fold", number == 0
            yield part


class _Page(Markdown):
    elements = {**Markdown.elements, "fence": _Code, "code_block": _Code, "table_open": _Table}  # noqa: RUF012


def page_text(markdown: str) -> str:
    """Return Markdown as text for the width and colours of this terminal."""
    console = Console()
    with console.capture() as capture:
        console.print(_Page(markdown), crop=False)
    return capture.get()
