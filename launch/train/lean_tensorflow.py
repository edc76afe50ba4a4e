"""TensorFlow without Keras, for the processes that train networks of our own."""

import sys
from types import ModuleType


def load() -> ModuleType:
    """Import TensorFlow, and Keras only if the program has it already or asks for it afterwards.

    TensorFlow imports Keras when it is loaded itself, to register optimizers for saved models, and goes on
    where there is none (the end of tensorflow/__init__.py). A run that has no use for Keras so takes half a
    second and some 50 MiB less. `tf.keras` and `import keras` work as ever. Raises ImportError.
    """
    if "keras" not in sys.modules and "tensorflow" not in sys.modules:
        sys.modules["keras"] = None  # type: ignore[assignment]  # the import system's word for "not there"
        try:
            import tensorflow
        finally:
            del sys.modules["keras"]
    import tensorflow

    return tensorflow  # type: ignore[no-any-return]
