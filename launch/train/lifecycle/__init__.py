"""Beside the training steps: checkpoints, evaluations, exports, traces, TensorBoard."""
