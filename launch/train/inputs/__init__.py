"""The inputs of a training step: each kind is a `Source`, made by `factory`."""
