"""Machines that come with gputopo, one recording each; `gputopo.captures.recording` reads them."""
