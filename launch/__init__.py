"""Plans, starts and watches training. The TensorFlow code is here, and loads only in the worker.

A `Job` is planned on a `Site`, which gives a `Target`; `runnable` makes its checked spec. `plan_on` plans;
`plan_by_runs` and `train_fastest` measure placements first. `train_once`, `train_repeatedly`, `run_program`,
`screen_devices` and `run_sweep` run to the end and store what came out; `dry_run` and `ExportedRun` only show
what would run. `strategy` is for the user's script, and loads TensorFlow when it is called. Each name loads
its module when it is used.
"""

from typing import TYPE_CHECKING

from gputopo.public_names import exports

if TYPE_CHECKING:
    from gputopo.launch.checks import runnable as runnable
    from gputopo.launch.job import Job as Job
    from gputopo.launch.job import parse_model as parse_model
    from gputopo.launch.jobs.autotune import plan_by_runs as plan_by_runs
    from gputopo.launch.jobs.autotune import train_fastest as train_fastest
    from gputopo.launch.jobs.claims import claim_free as claim_free
    from gputopo.launch.jobs.reduction_bench import measure_reduction as measure_reduction
    from gputopo.launch.jobs.repeats import train_repeatedly as train_repeatedly
    from gputopo.launch.jobs.screen_course import screen_devices as screen_devices
    from gputopo.launch.jobs.sweep_course import run_sweep as run_sweep
    from gputopo.launch.jobs.training import train_once as train_once
    from gputopo.launch.plans import plan_on as plan_on
    from gputopo.launch.site import Site as Site
    from gputopo.launch.site import rehearsal_name as rehearsal_name
    from gputopo.launch.site import with_costs as with_costs
    from gputopo.launch.spec.dry_run import DryRun as DryRun
    from gputopo.launch.spec.dry_run import dry_run as dry_run
    from gputopo.launch.spec.dry_run import dry_run_of_program as dry_run_of_program
    from gputopo.launch.spec.exports import ExportedRun as ExportedRun
    from gputopo.launch.supervise.run_folder import check_output as check_output
    from gputopo.launch.supervise.run_folder import runs_home as runs_home
    from gputopo.launch.target import Target as Target
    from gputopo.launch.user_program.on_hosts import run_program_on_hosts as run_program_on_hosts
    from gputopo.launch.user_program.program import check_program as check_program
    from gputopo.launch.user_program.running import run_program as run_program
    from gputopo.launch.user_strategy import strategy as strategy

_MODULES = {
    "DryRun": "spec.dry_run",
    "ExportedRun": "spec.exports",
    "Job": "job",
    "Site": "site",
    "Target": "target",
    "check_output": "supervise.run_folder",
    "check_program": "user_program.program",
    "claim_free": "jobs.claims",
    "dry_run": "spec.dry_run",
    "dry_run_of_program": "spec.dry_run",
    "measure_reduction": "jobs.reduction_bench",
    "parse_model": "job",
    "plan_by_runs": "jobs.autotune",
    "plan_on": "plans",
    "rehearsal_name": "site",
    "run_program": "user_program.running",
    "run_program_on_hosts": "user_program.on_hosts",
    "run_sweep": "jobs.sweep_course",
    "runnable": "checks",
    "runs_home": "supervise.run_folder",
    "screen_devices": "jobs.screen_course",
    "strategy": "user_strategy",
    "train_fastest": "jobs.autotune",
    "train_once": "jobs.training",
    "train_repeatedly": "jobs.repeats",
    "with_costs": "site",
}
__all__ = [*_MODULES]
__getattr__ = exports(__name__, _MODULES)
