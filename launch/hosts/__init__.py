"""Several hosts that work together: which hosts take part, in which order, and how they connect.

`find_hosts` returns the hosts of a command. `ask_for_machines`, `plan_of_hosts` and `measure_network` ask
them through ssh or srun. `start_hosts` starts a run on each; `run_on_hosts` is the run of one of them.
"""
