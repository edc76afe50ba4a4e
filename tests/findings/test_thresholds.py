"""The thresholds of all rules as numbers, apart from the code that declares them."""

from pathlib import Path

from gputopo.findings import catalogue

ROOT = Path(__file__).parents[2]
THRESHOLDS = {
    ("bandwidth.below_expected", "copies with the host far below same-model GPUs"): 0.60,
    ("bandwidth.below_expected", "copies at half of those of same-model GPUs"): 0.45,
    ("bandwidth.below_expected", "copies in both directions at once below same-model GPUs"): 0.80,
    ("bandwidth.below_expected", "NVLinks of a GPU in a hybrid cube mesh, counted by rate"): 0.67,
    (
        "bandwidth.below_expected",
        "copies staged through host memory far below the widest link of the model",
    ): 0.40,
    ("bandwidth.direction_differs", "copies of one direction below the other"): 0.8,
    ("bandwidth.direction_differs", "highest rate of a PCIe link"): 121.0,
    ("bandwidth.pageable_slow", "slow pageable copies"): 0.7,
    ("bandwidth.pair_slower", "pair slower than its peers"): 0.9,
    ("bandwidth.pair_slower", "pair slower than its peers, where no hop is known"): 0.5,
    ("bandwidth.pair_slower", "peers of a pair"): 3,
    ("bandwidth.pair_slower", "noise"): 3.0,
    ("bandwidth.unsteady", "spread of the repeats of one copy"): 15.0,
    ("bandwidth.unsteady", "repeats before their spread is judged"): 3,
    ("clocks.memory_slower_than_peers", "GPUs at the same load"): 3,
    ("clocks.memory_slower_than_peers", "memory clock in the same P-state"): 0.05,
    ("memory.more_errors_than_peers", "more errors than peers"): 10,
    ("memory.more_errors_than_peers", "more errors than peers, at least"): 100,
    ("memory.more_errors_than_peers", "more remapped rows than peers, at least"): 8,
    ("pcie.link_slower_than_peers", "GPUs at the same load"): 3,
    ("power.idle_draw", "GPUs at the same load"): 3,
    ("power.idle_draw", "idle"): 5,
    ("power.idle_draw", "idle power draw beside peers"): 2,
    ("power.idle_draw", "idle power draw beside peers, at least"): 50,
    ("thermal.fan_stopped", "temperature at which fans of peers run that could stop"): 40,
    ("thermal.fan_stopped", "temperature with a stopped fan"): 70,
    ("thermal.hotter_than_peers", "GPUs at the same load"): 3,
    ("thermal.hotter_than_peers", "hotter than peers"): 25,
    ("thermal.hotter_than_peers", "same load"): 10,
    ("soak.errors", "packet replays in a minute"): 8,
    ("soak.rate_fell", "fall of a rate over a soak"): 5,
    ("soak.rate_fell", "intervals of a soak before a fall is judged"): 4,
    ("throttle.time", "throttled longer than peers"): 10,
    ("throttle.time", "throttled longer than peers, at least"): 60,
    ("throttle.time", "time in HW power brake slowdown"): 600,
    ("throttle.time", "time in HW thermal slowdown"): 600,
    ("throttle.time", "time in SW thermal slowdown"): 3600,
    ("card.differs", "lowered power limit"): 0.02,
    ("configuration.differs", "lowered power limit"): 0.02,
    ("clocks.application_below_default", "memory or application clock difference"): 0.01,
    ("clocks.application_differs", "memory or application clock difference"): 0.01,
    ("clocks.core_below_maximum", "core clock under load"): 0.9,
    ("clocks.core_below_maximum", "core clock under load, where only NVML's maximum is known"): 0.65,
    ("clocks.core_below_maximum", "utilization under load"): 50,
    ("clocks.core_differs", "core clock difference"): 0.02,
    ("clocks.core_slower_than_peers", "core clock below peers under load"): 0.1,
    ("clocks.core_slower_than_peers", "utilization under load"): 50,
    ("clocks.memory_below_maximum", "memory clock under load"): 0.9,
    ("clocks.memory_below_maximum", "utilization under load"): 50,
    ("clocks.memory_below_model", "memory clock below the model's"): 0.03,
    ("clocks.memory_differs", "memory or application clock difference"): 0.01,
    ("clocks.sagging", "sagging core clock"): 0.1,
    ("clocks.sagging", "samples under load before sagging is reported"): 20,
    ("clocks.sagging", "utilization under load"): 50,
    ("gpu.busy", "utilization by other programs"): 10,
    ("gpu.busy", "memory used by other programs"): 0.1,
    ("memory.few_spare_rows", "memory banks without spare rows"): 1,
    ("gpu.busy", "memory used where no process is visible"): 512,
    ("gpu.busy", "memory that the driver may count as used"): 1024,
    ("gpu.busy", "memory of a program that computes"): 64,
    ("gpu.busy", "power where no process is visible"): 0.6,
    ("gpu.busy", "utilization and memory of a display"): 0.5,
    ("machine.mixed_memory", "memory size difference"): 0.07,
    ("memory.many_retired_pages", "retired pages"): 60,
    ("nic.errors", "errors of a port's link"): 10,
    ("nic.errors", "packets that a port dropped"): 100,
    ("nic.errors", "more errors than like ports"): 10,
    ("nic.errors", "more errors than like ports, at least"): 1000,
    ("nic.link_slow", "lanes of an InfiniBand link"): 1,
    ("network.all_slow", "rate between hosts, of the payload at the card's rate"): 0.8,
    ("network.host_slow", "rate between two hosts, of the fast ones of all pairs"): 0.8,
    ("network.host_slow", "transfers of a host in one direction that are slow"): 0.75,
    ("network.oversubscribed", "rate of a host while all send at once, of its rate in pairs"): 0.7,
    ("network.pair_slow", "rate between two hosts, of the fast ones of all pairs"): 0.8,
    ("network.unattributed", "rate between two hosts, of the fast ones of all pairs"): 0.8,
    ("network.unattributed", "rate between hosts, of the payload at the card's rate"): 0.8,
    ("network.unsteady", "spread of the windows of a transfer, median of all pairs"): 40.0,
    (
        "network.unsteady",
        "share of the fast rate that a pair reaches in one direction, and in it while it uses both",
    ): 0.1,
    ("numa.far_slow", "slow copies with a far NUMA node"): 0.9,
    ("numa.far_slow", "very slow copies with a far NUMA node"): 0.5,
    ("numa.affinity_cut", "scattered CPUs"): 6,
    ("nvlink.down", "GPUs that are all connected by NVLink"): 3,
    ("nvlink.errors", "NVLink CRC errors"): 100,
    ("collectives.falls", "bus bandwidth of the largest size, of that of the best smaller size"): 0.80,
    ("collectives.falls", "size from which bus bandwidths are compared"): 16_777_216,
    ("collectives.in_place_differs", "in place against out of place at the largest size"): 0.85,
    (
        "collectives.network_slow",
        "bus bandwidth over several hosts, of the rate of the network ports of a host",
    ): 0.5,
    ("collectives.latency", "time of a message of at most 8 KiB"): 250.0,
    ("collectives.nvls_unused", "bus bandwidth of a ring, up to so much more"): 1.08,
    ("errors.rising", "packet replays in a minute"): 8,
    ("nvlink.errors", "NVLink packet replays"): 100,
    ("p2p.direct_slower_than_staged", "direct copies slower than staged ones"): 0.03,
    ("p2p.direct_slower_than_staged", "rounding of printed rates"): 0.01,
    ("p2p.direct_slower_than_staged", "noise"): 3.0,
    ("p2p.direct_slower_than_staged", "lower latency of direct copies"): 0.80,
    ("pcie.errors", "corrected PCIe errors (AER)"): 480,
    ("pcie.generation_degraded", "samples under load before a slow link is reported"): 5,
    ("pcie.generation_degraded", "share of samples under load before a slow link is reported"): 0.5,
    ("pcie.generation_degraded", "utilization under load"): 50,
    ("pcie.link_flapping", "link changes under load during a watch"): 3,
    ("pcie.link_flapping", "link changes during one measurement"): 2,
    ("pcie.replays", "packet replays"): 80,
    ("pcie.replays", "many packet replays"): 11520,
    ("pcie.replays", "few packet replays, if similar on all SXM modules of a model"): 0.1,
    ("pcie.replays", "similar counts of packet replays"): 2,
    ("pcie.shared_uplink", "oversubscribed uplink"): 4,
    ("pcie.slot_narrow", "narrow slot"): 4,
    ("power.limit_below_default", "lowered power limit"): 0.02,
    ("power.limit_overruled", "lowered power limit"): 0.02,
    ("thermal.memory_hot", "highest valid temperature threshold"): 120,
    ("thermal.near_slowdown", "near slowdown"): 5,
    ("thermal.near_slowdown", "highest valid temperature threshold"): 120,
    ("thermal.near_slowdown", "temperature below which margins are not used"): 65,
    ("throttle.sw_power_cap", "low power draw at a power cap"): 0.8,
}


def test_every_threshold_has_its_number() -> None:
    declared = {(rule.id, one.name): one.value for rule in catalogue() for one in rule.thresholds}
    assert declared == THRESHOLDS


def test_every_threshold_has_a_unit_and_an_origin() -> None:
    for rule in catalogue():
        for one in rule.thresholds:
            assert one.name, rule.id
            assert one.unit, rule.id
            assert len(one.origin) > 3, rule.id


def test_every_rule_has_a_title_a_remedy_and_severities_and_they_are_sorted() -> None:
    rules = catalogue()
    assert [rule.id for rule in rules] == sorted({rule.id for rule in rules})
    for rule in rules:
        assert rule.title, rule.id
        assert rule.remedy, rule.id
        texts = [
            rule.title,
            rule.remedy,
            *(text for case in rule.cases.values() for text in (case.says, case.remedy)),
        ]
        assert not any("  " in text for text in texts), rule.id
        assert rule.severities, rule.id
        assert all(case.severity in rule.severities for case in rule.cases.values()), rule.id


def test_each_id_stands_once_in_the_product() -> None:
    folders = (ROOT / "gputopo", ROOT / "launch", ROOT / "probes")
    text = "\n".join(
        path.read_text()
        for folder in folders
        for path in sorted(folder.rglob("*.py"))
        if not path.is_symlink()
    )
    assert {rule.id: text.count(f'"{rule.id}"') for rule in catalogue()} == {
        rule.id: 1 for rule in catalogue()
    }
