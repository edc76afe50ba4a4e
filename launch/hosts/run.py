"""`gputopo run` in a process that is one of several hosts."""

import os
from pathlib import Path

from gputopo.launch.hosts.allocation import Allocation
from gputopo.launch.hosts.joining import excuse
from gputopo.launch.hosts.options import HostOptions
from gputopo.launch.hosts.training import HostOfRun, Lead, train_on_hosts
from gputopo.launch.job import Job
from gputopo.launch.site import Site
from gputopo.launch.source import planned_machine
from gputopo.launch.supervise.run_folder import check_output
from gputopo.values.errors import GputopoError
from gputopo.values.run.options import OutputOptions


def run_on_hosts(
    allocation: Allocation, hosts: HostOptions, job: Job, options: OutputOptions, lead: Lead
) -> int:
    """Take part in the run of a job, and return the exit code of this host. Raises GputopoError.

    `lead`: trains on rank 0. What keeps another host from taking part is reported to rank 0.
    """
    request, typed = job.request, job.typed
    try:
        check_output(None if options.output is None else Path(options.output))
        if job.program:
            from gputopo.launch.user_program.program import check_program

            check_program(job.program, os.environ)
        site = Site(
            planned_machine(()),
            cpu=options.cpu,
            require_gpu=options.require_gpu,
            affinity=not options.no_affinity,
            alone=False,
            trains=not (job.program or options.dry_run),
        )
        if not job.program:
            request, typed = site.with_costs(request), {"model": job.model, **typed}
    except GputopoError as error:
        return excuse(allocation, hosts, error)
    host = HostOfRun(allocation, hosts, site, options, typed)
    if job.program:
        from gputopo.launch.user_program.on_hosts import run_program_on_hosts

        return run_program_on_hosts(host, job.program, request)
    return train_on_hosts(host, job, request, lead)
