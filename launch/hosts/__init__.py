"""Several hosts that work together: which hosts take part, in which order, and how they connect.

`find_hosts` returns the hosts of a command. `ask_for_machines`, `plan_of_hosts` and `measure_network` ask
them through ssh or srun. `start_hosts` starts a run on each; `run_on_hosts` is the run of one of them. All of
these are in `gputopo.launch`. The parts of a run are here: rank 0 is a `RendezvousServer` with `Members`, the
other hosts are a `RendezvousClient` each. Each name loads its module when it is used.
"""

from typing import TYPE_CHECKING

from gputopo.public_names import exports

if TYPE_CHECKING:
    from gputopo.launch.hosts.driver import DriverTimeouts as DriverTimeouts
    from gputopo.launch.hosts.driver import RankEnds as RankEnds
    from gputopo.launch.hosts.driver import start_hosts as start_hosts
    from gputopo.launch.hosts.host_process import HostCommand as HostCommand
    from gputopo.launch.hosts.host_process import HostProcess as HostProcess
    from gputopo.launch.hosts.host_process import host_command as host_command
    from gputopo.launch.hosts.hostlists import HostAddress as HostAddress
    from gputopo.launch.hosts.hostlists import read_hostfile as read_hostfile
    from gputopo.launch.hosts.hostlists import read_hosts as read_hosts
    from gputopo.launch.hosts.members import Members as Members
    from gputopo.launch.hosts.messages import HostStart as HostStart
    from gputopo.launch.hosts.messages import HostTimeouts as HostTimeouts
    from gputopo.launch.hosts.messages import Joining as Joining
    from gputopo.launch.hosts.messages import Report as Report
    from gputopo.launch.hosts.messages import Resources as Resources
    from gputopo.launch.hosts.messages import RunEnd as RunEnd
    from gputopo.launch.hosts.planning import devices_of_each as devices_of_each
    from gputopo.launch.hosts.planning import plan_hosts as plan_hosts
    from gputopo.launch.hosts.rendezvous_client import RendezvousClient as RendezvousClient
    from gputopo.launch.hosts.rendezvous_server import RendezvousServer as RendezvousServer
    from gputopo.launch.hosts.secret import take_secret as take_secret

_MODULES = {
    "DriverTimeouts": "driver",
    "HostAddress": "hostlists",
    "HostCommand": "host_process",
    "HostProcess": "host_process",
    "HostStart": "messages",
    "HostTimeouts": "messages",
    "Joining": "messages",
    "Members": "members",
    "RankEnds": "driver",
    "RendezvousClient": "rendezvous_client",
    "RendezvousServer": "rendezvous_server",
    "Report": "messages",
    "Resources": "messages",
    "RunEnd": "messages",
    "devices_of_each": "planning",
    "host_command": "host_process",
    "plan_hosts": "planning",
    "read_hostfile": "hostlists",
    "read_hosts": "hostlists",
    "start_hosts": "driver",
    "take_secret": "secret",
}
__all__ = [*_MODULES]
__getattr__ = exports(__name__, _MODULES)
