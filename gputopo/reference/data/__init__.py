"""Tables and machines that are installed with gputopo, read through importlib.resources."""
