"""What a run keeps or does beside training: checkpoints, evaluations, exports, traces, TensorBoard."""
