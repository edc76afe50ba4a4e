"""Supervises workers: starts them, reads their events, records how they ended, and leaves no process behind."""
