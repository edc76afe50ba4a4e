"""Where variables live: the devices, a small class a strategy, the check of where everything is."""
