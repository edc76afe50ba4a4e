"""Images/sec of one GPU: of its own runs, published, or by its datasheet."""
