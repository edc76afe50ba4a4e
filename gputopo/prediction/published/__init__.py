"""Published figures of several GPUs beside their predictions."""
