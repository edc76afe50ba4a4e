"""The inputs of a training step: each kind is an `InputSource`, made by `factory`."""
