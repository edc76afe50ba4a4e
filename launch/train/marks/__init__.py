"""Time marks of a step: read inside its graph, of the exchange between hosts, and of several clocks."""
