"""The models that gputopo trains, built for TensorFlow."""
