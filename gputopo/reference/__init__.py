"""Published facts about GPUs, links and driver codes, each with its source."""

from typing import TYPE_CHECKING

from gputopo.public_names import exports

if TYPE_CHECKING:
    from gputopo.reference.clock_events import CLOCK_EVENT_BITS as CLOCK_EVENT_BITS
    from gputopo.reference.clock_events import CLOCK_EVENTS as CLOCK_EVENTS
    from gputopo.reference.clock_events import LOAD_STATES as LOAD_STATES
    from gputopo.reference.clock_events import clock_event_words as clock_event_words
    from gputopo.reference.clock_events import decode_clock_events as decode_clock_events
    from gputopo.reference.clock_events import throttle_reasons as throttle_reasons
    from gputopo.reference.clock_events import under_load as under_load
    from gputopo.reference.copied_links import NARROW_LANES as NARROW_LANES
    from gputopo.reference.copied_links import observed_link as observed_link
    from gputopo.reference.copied_links import over_nvlink as over_nvlink
    from gputopo.reference.copied_links import pcie_max as pcie_max
    from gputopo.reference.expectations import GpuExpectation as GpuExpectation
    from gputopo.reference.expectations import LinkExpectation as LinkExpectation
    from gputopo.reference.expectations import NvLinkExpectation as NvLinkExpectation
    from gputopo.reference.expectations import address_order as address_order
    from gputopo.reference.expectations import expected_bus as expected_bus
    from gputopo.reference.expectations import expected_gpu as expected_gpu
    from gputopo.reference.expectations import expected_link as expected_link
    from gputopo.reference.expectations import expected_nvlink as expected_nvlink
    from gputopo.reference.expectations import expected_of as expected_of
    from gputopo.reference.expectations import fitting_links as fitting_links
    from gputopo.reference.expectations import generation_of as generation_of
    from gputopo.reference.expectations import known_gpus as known_gpus
    from gputopo.reference.expectations import name_of as name_of
    from gputopo.reference.expectations import parse_link_speed as parse_link_speed
    from gputopo.reference.expectations import parse_link_width as parse_link_width
    from gputopo.reference.expectations import reference_rows as reference_rows
    from gputopo.reference.published import PUBLISHED_SOURCES as PUBLISHED_SOURCES
    from gputopo.reference.published import Missing as Missing
    from gputopo.reference.published import Published as Published
    from gputopo.reference.published import published_figures as published_figures
    from gputopo.reference.published import published_machines as published_machines
    from gputopo.reference.published import published_missing as published_missing

_MODULES = {
    "CLOCK_EVENTS": "clock_events",
    "CLOCK_EVENT_BITS": "clock_events",
    "GpuExpectation": "expectations",
    "LOAD_STATES": "clock_events",
    "LinkExpectation": "expectations",
    "Missing": "published",
    "NARROW_LANES": "copied_links",
    "NvLinkExpectation": "expectations",
    "PUBLISHED_SOURCES": "published",
    "Published": "published",
    "address_order": "expectations",
    "clock_event_words": "clock_events",
    "decode_clock_events": "clock_events",
    "expected_bus": "expectations",
    "expected_gpu": "expectations",
    "expected_link": "expectations",
    "expected_nvlink": "expectations",
    "expected_of": "expectations",
    "fitting_links": "expectations",
    "generation_of": "expectations",
    "known_gpus": "expectations",
    "name_of": "expectations",
    "observed_link": "copied_links",
    "over_nvlink": "copied_links",
    "parse_link_speed": "expectations",
    "parse_link_width": "expectations",
    "pcie_max": "copied_links",
    "published_figures": "published",
    "published_machines": "published",
    "published_missing": "published",
    "reference_rows": "expectations",
    "throttle_reasons": "clock_events",
    "under_load": "clock_events",
}
__all__ = [*_MODULES]
__getattr__ = exports(__name__, _MODULES)
