"""Supervises workers: starts them, reads their events, records their end, and leaves no process behind."""
