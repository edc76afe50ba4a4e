"""Commands on several hosts: rendezvous, starting the hosts, fleets, the network between them."""
