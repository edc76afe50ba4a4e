"""Values in, things to show out. Nothing here prints, reads a file or asks the machine."""
