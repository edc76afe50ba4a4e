"""The published documents: their cells as measurements, their derived figures and errors, their tables."""
