"""CUDA copies: the only package that imports cuda.bindings (driver API)."""
