"""Run the code cells of a notebook, print what a notebook would show: `python -m tests.api.notebook FILE`."""

import ast
import json
import sys
from pathlib import Path
from typing import Any


def main(file: str) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in json.loads(Path(file).read_text())["cells"]:
        if cell["cell_type"] != "code":
            continue
        *statements, last = ast.parse("".join(cell["source"])).body
        if not isinstance(last, ast.Expr):
            statements.append(last)
        exec(compile(ast.Module(statements, []), file, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), file, "eval"), names)
            print(value._repr_html_() if hasattr(value, "_repr_html_") else repr(value))


if __name__ == "__main__":
    main(sys.argv[1])
