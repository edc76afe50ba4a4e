"""From a plan and options to the frozen spec of a run, checked before anything starts."""
