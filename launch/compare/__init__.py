"""Other trainers of the same model, for comparison: tf.distribute and three Keras programs."""
