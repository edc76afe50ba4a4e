"""Several hosts compared: kinds of like hosts, and the odd ones among each kind."""
