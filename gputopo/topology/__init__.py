"""How devices are connected, and which device in one source is which in another."""
