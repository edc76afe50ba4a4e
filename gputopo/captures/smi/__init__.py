"""What the three outputs of `nvidia-smi -q` have in common: one table of names, values with units, one GPU.

`table` and `table_health` map each dialect's names to facts; `known` lists names without a place
in the machine; `names` looks them up; `values` reads a value; `gpu` and `machine` put the facts together.
"""
