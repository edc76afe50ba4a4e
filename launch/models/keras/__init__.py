"""Keras models, by name or the user's own: sources, meaning of outputs, training."""
