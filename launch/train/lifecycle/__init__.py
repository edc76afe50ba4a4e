"""Everything in a run other than training steps: checkpoints, evaluations, exports, traces, TensorBoard."""
