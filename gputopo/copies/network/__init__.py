"""The network between hosts: who sends when, by which tool, and what was measured."""
