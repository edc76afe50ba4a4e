"""What `nvidia-smi` prints.

`names` maps each dialect's names to facts, `values` parses a value, `gpu` and `machine` put the facts
together. `text`, `xml`, `csv_table`, `dmon`, `overview` and `nvlink` each parse one output; `topo_matrix` and
`p2p` parse the outputs of `topo`.
"""
