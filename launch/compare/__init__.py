"""Other ways to train the same model, to compare with: tf.distribute and three Keras programs."""
