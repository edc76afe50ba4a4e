"""Watches over the worker: starts it, listens to it, says what became of it, and ends it on every way out."""
