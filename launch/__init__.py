"""Plans, starts and watches training. The TensorFlow code is here, and loads only in the worker.

A `Job` is planned on a `Site`, which gives a `Target`; `runnable` makes its checked spec. `plan_on` plans;
`plan_by_runs` and `train_fastest` measure placements first. `strategy` is for the user's script, and loads
TensorFlow when it is called. Each name loads its module when it is used.
"""

from typing import TYPE_CHECKING

from gputopo.public_names import exports

if TYPE_CHECKING:
    from gputopo.launch.checks import runnable as runnable
    from gputopo.launch.data import DataRequest as DataRequest
    from gputopo.launch.data import make_data as make_data
    from gputopo.launch.job import Job as Job
    from gputopo.launch.jobs.autotune import plan_by_runs as plan_by_runs
    from gputopo.launch.jobs.autotune import train_fastest as train_fastest
    from gputopo.launch.plans import plan_on as plan_on
    from gputopo.launch.site import Site as Site
    from gputopo.launch.target import Target as Target
    from gputopo.launch.user_strategy import strategy as strategy

_MODULES = {
    "DataRequest": "data",
    "Job": "job",
    "Site": "site",
    "Target": "target",
    "make_data": "data",
    "plan_by_runs": "jobs.autotune",
    "plan_on": "plans",
    "runnable": "checks",
    "strategy": "user_strategy",
    "train_fastest": "jobs.autotune",
}
__all__ = [*_MODULES]
__getattr__ = exports(__name__, _MODULES)
