"""Pictures of machines, links, runs and comparisons as SVG, for pages and for Markdown."""
