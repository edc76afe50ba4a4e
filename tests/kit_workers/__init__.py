"""A worker that misbehaves on request, for the tests of the launcher."""
