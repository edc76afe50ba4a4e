"""An inspection as metrics: Prometheus' text format, and the series that are written in it."""
