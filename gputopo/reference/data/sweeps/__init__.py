"""Sweeps that come with gputopo, one TOML file each; `gputopo.sweeps.matrix` reads them."""
