"""Published facts about GPUs, links and driver codes, each with its source."""
