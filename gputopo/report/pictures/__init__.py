"""Pictures of machines, links, runs and comparisons as SVG, for pages and for Markdown. Loads matplotlib.

Importing it raises UsageError if matplotlib is not installed.
"""

from gputopo.values.errors import UsageError
from gputopo.values.install import pip_install

try:
    import matplotlib as matplotlib
except ImportError as error:
    raise UsageError(
        "the charts need matplotlib, which is not installed", pip_install("matplotlib")
    ) from error
