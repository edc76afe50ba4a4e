"""CUDA copies: the only capacity that imports cuda.bindings (driver API)."""
