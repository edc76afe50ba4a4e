"""A study as a document of tables and sentences, and as CSV; the published documents made anew."""
