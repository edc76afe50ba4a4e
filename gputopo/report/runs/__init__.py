"""What is shown of a run: while it goes, when it is over, and of several in a row."""
