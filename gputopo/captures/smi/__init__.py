"""What `nvidia-smi` prints.

`names` maps each dialect's names to facts, `values` reads a value, `gpu` and `machine` put the facts
together. `text`, `xml`, `csv_table`, `dmon` and `overview` read one output each, `topo_matrix` `topo
-m`, `links` `topo -p2p` and `nvlink -s`.
"""
