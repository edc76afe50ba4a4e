"""Turns values into reports. Nothing here decides, reads a file or queries the machine.

For each kind of value, a function such as `plan_document` returns a `Document`, which `document_lines`,
`document_text`, `document_markdown`, `markdown_files` and `document_html` write. A running run or watch has
displays (`Progress`, `TfCnnLog`, `RunMetrics`, `WatchDisplay`), and messages go to stderr (`note`). Each name
loads its module when it is used.
"""

from typing import TYPE_CHECKING

from gputopo.public_names import exports

if TYPE_CHECKING:
    from gputopo.report.bandwidth.change import bandwidth_change_document as bandwidth_change_document
    from gputopo.report.bandwidth.parts import bandwidth_document as bandwidth_document
    from gputopo.report.box import box_document as box_document
    from gputopo.report.document import Document as Document
    from gputopo.report.document import document_lines as document_lines
    from gputopo.report.document import document_text as document_text
    from gputopo.report.document.markdown import document_markdown as document_markdown
    from gputopo.report.document.markdown import markdown_files as markdown_files
    from gputopo.report.findings import watched_document as watched_document
    from gputopo.report.fleet import difference_document as difference_document
    from gputopo.report.fleet import drain_commands as drain_commands
    from gputopo.report.fleet import fleet_document as fleet_document
    from gputopo.report.layout import Line as Line
    from gputopo.report.machine.inspection import inspection_document as inspection_document
    from gputopo.report.machine.watch import WatchDisplay as WatchDisplay
    from gputopo.report.measurements_csv import measured_csv as measured_csv
    from gputopo.report.page import document_html as document_html
    from gputopo.report.plan import plan_document as plan_document
    from gputopo.report.plan import plan_summary as plan_summary
    from gputopo.report.plan_parts import autotune_document as autotune_document
    from gputopo.report.plan_parts import autotune_note as autotune_note
    from gputopo.report.plan_parts import autotune_run_line as autotune_run_line
    from gputopo.report.prometheus import exposition as exposition
    from gputopo.report.run_metrics import RunMetrics as RunMetrics
    from gputopo.report.runs.progress import Progress as Progress
    from gputopo.report.runs.report import failure_lines as failure_lines
    from gputopo.report.runs.report import program_lines as program_lines
    from gputopo.report.runs.report import repeats_document as repeats_document
    from gputopo.report.runs.report import run_document as run_document
    from gputopo.report.runs.screen import screen_document as screen_document
    from gputopo.report.runs.screen import screen_run_line as screen_run_line
    from gputopo.report.runs.sweep import sweep_cell_line as sweep_cell_line
    from gputopo.report.runs.sweep import sweep_document as sweep_document
    from gputopo.report.runs.tf_cnn_log import TfCnnLog as TfCnnLog
    from gputopo.report.stderr import drop_unwritten as drop_unwritten
    from gputopo.report.stderr import note as note
    from gputopo.report.stderr import show_error as show_error
    from gputopo.report.stderr import to_stderr as to_stderr
    from gputopo.report.study import study_document as study_document
    from gputopo.report.units import seconds as seconds
    from gputopo.report.units import size as size

_MODULES = {
    "Document": "document",
    "Line": "layout",
    "Progress": "runs.progress",
    "RunMetrics": "run_metrics",
    "TfCnnLog": "runs.tf_cnn_log",
    "WatchDisplay": "machine.watch",
    "autotune_document": "plan_parts",
    "autotune_note": "plan_parts",
    "autotune_run_line": "plan_parts",
    "bandwidth_change_document": "bandwidth.change",
    "bandwidth_document": "bandwidth.parts",
    "box_document": "box",
    "difference_document": "fleet",
    "document_html": "page",
    "document_lines": "document",
    "document_markdown": "document.markdown",
    "document_text": "document",
    "drain_commands": "fleet",
    "drop_unwritten": "stderr",
    "exposition": "prometheus",
    "failure_lines": "runs.report",
    "fleet_document": "fleet",
    "inspection_document": "machine.inspection",
    "markdown_files": "document.markdown",
    "measured_csv": "measurements_csv",
    "note": "stderr",
    "plan_document": "plan",
    "plan_summary": "plan",
    "program_lines": "runs.report",
    "repeats_document": "runs.report",
    "run_document": "runs.report",
    "screen_document": "runs.screen",
    "screen_run_line": "runs.screen",
    "seconds": "units",
    "show_error": "stderr",
    "size": "units",
    "study_document": "study",
    "sweep_cell_line": "runs.sweep",
    "sweep_document": "runs.sweep",
    "to_stderr": "stderr",
    "watched_document": "findings",
}
__all__ = [*_MODULES]
__getattr__ = exports(__name__, _MODULES)
