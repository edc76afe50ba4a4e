"""`gputopo bandwidth`: its options, what is shown while it measures, and what it prints and files."""
