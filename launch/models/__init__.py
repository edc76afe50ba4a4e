"""The models that the training core trains, built for TensorFlow."""
