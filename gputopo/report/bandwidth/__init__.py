"""The report of `gputopo bandwidth`: its parts, and them as text, as Markdown and as a document."""
