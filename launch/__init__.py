"""Starts and watches training; the TensorFlow core lives here. TensorFlow loads only in the worker."""
