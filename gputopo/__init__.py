"""gputopo: hardware diagnostics and a topology-aware launcher for multi-GPU TensorFlow training."""

__version__ = "0.1.0"
