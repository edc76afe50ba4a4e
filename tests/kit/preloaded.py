"""What commands share: the server of the processes that run them (`commands`) imports it once."""

import importlib
import pkgutil

import gputopo

# They need TensorFlow, which starts threads; a process with threads must not be forked.
_LEFT_OUT = tuple(f"gputopo.launch.{room}" for room in ("compare", "data", "models", "train"))


def _import_all(name: str) -> None:
    package = importlib.import_module(name)
    for module in pkgutil.iter_modules(package.__path__, f"{name}."):
        if module.name.startswith(_LEFT_OUT):
            continue
        if module.ispkg:
            _import_all(module.name)
        elif not module.name.endswith(".__main__"):
            importlib.import_module(module.name)


_import_all(gputopo.__name__)
for name in ("faults", "nvml", "sysfs"):
    importlib.import_module(f"tests.kit.{name}")
