"""Records of a data set's files, on each host that reads: in order, and with bad ones found."""
