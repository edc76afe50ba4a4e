"""CUDA copies: the only room that imports cuda.bindings (driver API)."""
