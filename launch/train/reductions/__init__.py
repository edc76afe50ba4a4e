"""Reductions of gradients over devices, and the self-test that each must pass."""
