"""The report of `gputopo bandwidth`: its parts, as text, as Markdown and as a document."""
