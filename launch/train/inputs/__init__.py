"""Where the towers' examples come from: each kind of input is a `Source` in a module of its own."""
