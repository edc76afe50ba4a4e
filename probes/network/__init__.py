"""The network of this host: transfers to other hosts by TCP, and the interface that an address is of."""
