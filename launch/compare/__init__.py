"""Other trainers of the same model, to compare with: tf.distribute and three Keras programs."""
