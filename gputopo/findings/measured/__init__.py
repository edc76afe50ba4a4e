"""What measured copies tell is wrong: one module a theme, and `rules` lists them in their order."""
