"""Keras models, by name or the user's own: where they come from, what their outputs mean, how they train."""
