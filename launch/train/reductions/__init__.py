"""Ways to add gradients up over devices, and the test that each must pass before it is trusted."""
