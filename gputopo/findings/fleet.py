"""The rules of a fleet: hosts that differ from the majority of like hosts, or cannot be compared."""

from gputopo.findings.rule import Rule

NO_ANSWER = Rule(
    "fleet.no_answer",
    title="host without a reading",
    remedy="Run gputopo inspect --record FILE on this host again. If it does not answer, look at its console "
    "or management controller.",
    severities=("error",),
)
GPU_COUNT = Rule(
    "fleet.gpu_count",
    title="host with fewer or more GPUs than like hosts",
    remedy="On the host that lacks the GPU, see sudo dmesg | grep -i -e xid -e pcie, and whether lspci lists "
    "it. Power-cycle the host; if the GPU stays away, reseat or replace it.",
    severities=("error",),
)
NIC_COUNT = Rule(
    "fleet.nic_count",
    title="host with fewer or more network cards than like hosts",
    remedy="See whether lspci lists the card on the host that lacks it, and reseat it.",
)
RAILS = Rule(
    "fleet.rails",
    title="host with its RDMA devices in another order than like hosts",
    remedy="Give RDMA devices names by their PCI address, alike on all hosts (udev rules of rdma-core), or "
    "start the host again. NCCL joins the cards of hosts in the order of their devices, so that this host "
    "sends to other switches where each rail has its own.",
)
DIFFERS = Rule(
    "fleet.differs",
    title="host with facts that differ from those of like hosts",
    remedy="Compare the host with a like one (gputopo inspect --from HOST --diff OTHER), and bring it to the "
    "same state, or replace what is defective.",
)
SPLIT = Rule(
    "fleet.split",
    title="like hosts of which no majority agrees",
    remedy="Decide which value is right: none is on more than half of the hosts, so no host is an outlier.",
)
NOT_READ = Rule(
    "fleet.not_read",
    title="facts that one host does not show and like hosts do",
    remedy="Read the host again, with the same rights and from outside of a container, to compare them.",
    severities=("info",),
)
RULES = (NO_ANSWER, GPU_COUNT, NIC_COUNT, RAILS, DIFFERS, SPLIT, NOT_READ)
