"""Pictures of machines, links, runs and comparisons as SVG, for pages and for Markdown.

Each name loads its module when it is used.
"""

from typing import TYPE_CHECKING

from gputopo.public_names import exports

if TYPE_CHECKING:
    from gputopo.report.pictures.charts import ChartPoint as ChartPoint
    from gputopo.report.pictures.charts import ChartSeries as ChartSeries
    from gputopo.report.pictures.charts import dated_picture as dated_picture
    from gputopo.report.pictures.charts import over_time_picture as over_time_picture
    from gputopo.report.pictures.charts import scaling_picture as scaling_picture
    from gputopo.report.pictures.of_study import with_pictures as with_pictures
    from gputopo.report.pictures.topology import topology_picture as topology_picture

_MODULES = {
    "ChartPoint": "charts",
    "ChartSeries": "charts",
    "dated_picture": "charts",
    "over_time_picture": "charts",
    "scaling_picture": "charts",
    "topology_picture": "topology",
    "with_pictures": "of_study",
}
__all__ = [*_MODULES]
__getattr__ = exports(__name__, _MODULES)
