"""How devices are connected and which device of one source is which of another. Pure."""
