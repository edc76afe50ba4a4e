"""A user's module that asks for what is not installed."""

import nothing_of_that_name  # type: ignore[import-not-found]  # noqa: F401
