"""What `nvidia-smi` calls the facts about a GPU and the NVSwitches that join it to others: its fabric."""

from gputopo.captures.smi.rows import Row

# Tag, heading. The newer the driver the more of them.
_HEALTH = (
    ("summary", "Summary"),
    ("bandwidth", "Bandwidth"),
    ("route_recovery_in_progress", "Route Recovery in progress"),
    ("route_unhealthy", "Route Unhealthy"),
    ("access_timeout_recovery", "Access Timeout Recovery"),
    ("incorrect_configuration", "Incorrect Configuration"),
    ("partition_assigned", "Partition Assigned"),
)

FABRIC = (
    Row("fabric.state", "fabric", "fabric/state", "Fabric/State", "fabric.state"),
    Row("fabric.status", "fabric", "fabric/status", "Fabric/Status", "fabric.status"),
    *(
        Row(
            f"fabric.health.{name}",
            "fabric",
            f"fabric/health/{name}",
            f"Fabric/Health/{heading}",
            f"fabric.health.{name}",
        )
        for name, heading in _HEALTH
    ),
)
