"""The multi-GPU methods of Keras programs before tf.distribute, on Keras 3, with towers placed for real."""
