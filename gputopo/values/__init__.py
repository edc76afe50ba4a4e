"""The machine, its bandwidth, plans, events and results as frozen values, and their JSON form."""
