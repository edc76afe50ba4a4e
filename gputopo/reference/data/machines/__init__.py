"""Machines that come with gputopo, one recording each; `gputopo.captures.bundled` reads them."""
