"""Plans, starts and watches training. The TensorFlow code is here, and loads only in the worker.

A `Job` is planned on a `Site`, which gives a `Target`; `runnable` makes its checked spec. `plan_on` plans;
`plan_by_runs` and `train_fastest` measure placements first. `train_once`, `train_repeatedly`, `run_program`,
`screen_devices` and `run_sweep` run to the end and store what came out; `dry_run` and `export_run` only show
what would run. `machine_from` and `planned_machine` read the machine of a command, `site_for` its site.
`find_hosts` returns the hosts of a command: see `gputopo.launch.hosts`. For the user's script are `strategy`,
`Steps` and `keras_steps`; the first and the last load TensorFlow when they are called. Each name loads its
module when it is used.
"""

from typing import TYPE_CHECKING

from gputopo.public_names import exports

if TYPE_CHECKING:
    from gputopo.launch.checks import runnable as runnable
    from gputopo.launch.data import DataRequest as DataRequest
    from gputopo.launch.data import make_data as make_data
    from gputopo.launch.exporting import export_hosts as export_hosts
    from gputopo.launch.exporting import export_run as export_run
    from gputopo.launch.failure import failure_of_exit as failure_of_exit
    from gputopo.launch.hosts.allocation import Allocation as Allocation
    from gputopo.launch.hosts.allocation import FoundHosts as FoundHosts
    from gputopo.launch.hosts.allocation import find_hosts as find_hosts
    from gputopo.launch.hosts.driver import start_hosts as start_hosts
    from gputopo.launch.hosts.fleet import ask_for_machines as ask_for_machines
    from gputopo.launch.hosts.fleet import read_machines as read_machines
    from gputopo.launch.hosts.network import measure_network as measure_network
    from gputopo.launch.hosts.options import HostOptions as HostOptions
    from gputopo.launch.hosts.plans import plan_of_hosts as plan_of_hosts
    from gputopo.launch.hosts.plans import plan_of_machines as plan_of_machines
    from gputopo.launch.hosts.rendezvous_server import RendezvousServer as RendezvousServer
    from gputopo.launch.hosts.run import run_on_hosts as run_on_hosts
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
    from gputopo.launch.source import FROM as FROM
    from gputopo.launch.source import begin_reading as begin_reading
    from gputopo.launch.source import machine_from as machine_from
    from gputopo.launch.source import planned_machine as planned_machine
    from gputopo.launch.source import site_for as site_for
    from gputopo.launch.source import with_ports_now as with_ports_now
    from gputopo.launch.spec.dry_run import DryRun as DryRun
    from gputopo.launch.spec.dry_run import dry_run as dry_run
    from gputopo.launch.spec.dry_run import dry_run_of_program as dry_run_of_program
    from gputopo.launch.supervise.run_folder import check_output as check_output
    from gputopo.launch.supervise.run_folder import runs_home as runs_home
    from gputopo.launch.target import Target as Target
    from gputopo.launch.throughput import Steps as Steps
    from gputopo.launch.throughput import keras_steps as keras_steps
    from gputopo.launch.user_program.running import run_program as run_program
    from gputopo.launch.user_strategy import nearest_strategy as nearest_strategy
    from gputopo.launch.user_strategy import strategy as strategy

_MODULES = {
    "Allocation": "hosts.allocation",
    "DataRequest": "data",
    "FROM": "source",
    "DryRun": "spec.dry_run",
    "FoundHosts": "hosts.allocation",
    "HostOptions": "hosts.options",
    "Job": "job",
    "RendezvousServer": "hosts.rendezvous_server",
    "Site": "site",
    "Steps": "throughput",
    "Target": "target",
    "ask_for_machines": "hosts.fleet",
    "begin_reading": "source",
    "check_output": "supervise.run_folder",
    "claim_free": "jobs.claims",
    "dry_run": "spec.dry_run",
    "dry_run_of_program": "spec.dry_run",
    "export_hosts": "exporting",
    "export_run": "exporting",
    "failure_of_exit": "failure",
    "find_hosts": "hosts.allocation",
    "keras_steps": "throughput",
    "machine_from": "source",
    "make_data": "data",
    "measure_network": "hosts.network",
    "measure_reduction": "jobs.reduction_bench",
    "nearest_strategy": "user_strategy",
    "parse_model": "job",
    "plan_by_runs": "jobs.autotune",
    "plan_of_hosts": "hosts.plans",
    "plan_of_machines": "hosts.plans",
    "plan_on": "plans",
    "planned_machine": "source",
    "read_machines": "hosts.fleet",
    "run_on_hosts": "hosts.run",
    "run_program": "user_program.running",
    "run_sweep": "jobs.sweep_course",
    "runnable": "checks",
    "runs_home": "supervise.run_folder",
    "screen_devices": "jobs.screen_course",
    "site_for": "source",
    "start_hosts": "hosts.driver",
    "strategy": "user_strategy",
    "train_fastest": "jobs.autotune",
    "train_once": "jobs.training",
    "train_repeatedly": "jobs.repeats",
    "with_ports_now": "source",
}
__all__ = [*_MODULES]
__getattr__ = exports(__name__, _MODULES)
