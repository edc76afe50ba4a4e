"""Writers that print a Machine as each tool of each era prints it, independent of the readers' tables."""
