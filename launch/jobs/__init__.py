"""Programs that are started to answer one question: a user's program, a search, a measurement."""
