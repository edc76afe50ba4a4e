"""What `nvidia-smi topo` prints: `matrix` reads `topo -m`, through `table`; `p2p` reads `topo -p2p`."""
