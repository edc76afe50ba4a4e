"""What follows from measured throughputs: cells, scaling, ratios, observations, comparisons.

`RunFolders` reads runs as measurements, `study_of` returns all that follows from measurements,
`compared_study` adds published figures, and `published_study` rebuilds a published document. `history_of_box`
shows what became worse on a machine.
"""

from typing import TYPE_CHECKING

from gputopo.public_names import exports

if TYPE_CHECKING:
    from gputopo.measurements.box import history_of_box as history_of_box
    from gputopo.measurements.figures import not_comparable as not_comparable
    from gputopo.measurements.published import compared_study as compared_study
    from gputopo.measurements.published import published_study as published_study
    from gputopo.measurements.run_folders import RunFolders as RunFolders
    from gputopo.measurements.study import study_of as study_of

_MODULES = {
    "RunFolders": "run_folders",
    "compared_study": "published",
    "history_of_box": "box",
    "not_comparable": "figures",
    "published_study": "published",
    "study_of": "study",
}
__all__ = [*_MODULES]
__getattr__ = exports(__name__, _MODULES)
