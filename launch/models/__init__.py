"""Models of the training core: networks of the catalogue, Keras models and the user's own.

A `Model` has variables (`VariableSpec`) and a `Forward` pass, for the rows of a tower (`TowerRows`), with
random numbers from a `Stream`. Each name loads its module when it is used; all but `require_code` load
TensorFlow.
"""

from typing import TYPE_CHECKING

from gputopo.public_names import exports

if TYPE_CHECKING:
    from gputopo.launch.models.keras_building import KerasModel as KerasModel
    from gputopo.launch.models.keras_building import build_keras as build_keras
    from gputopo.launch.models.keras_costs import count_costs as count_costs
    from gputopo.launch.models.layers import GraphLayers as GraphLayers
    from gputopo.launch.models.layers import Stream as Stream
    from gputopo.launch.models.layers import TowerRows as TowerRows
    from gputopo.launch.models.model import Forward as Forward
    from gputopo.launch.models.model import Model as Model
    from gputopo.launch.models.model import VariableSpec as VariableSpec
    from gputopo.launch.models.model import parameter_count as parameter_count
    from gputopo.launch.models.models import NetworkModel as NetworkModel
    from gputopo.launch.models.models import build_model as build_model
    from gputopo.launch.models.source_check import require_code as require_code

_MODULES = {
    "Forward": "model",
    "GraphLayers": "layers",
    "KerasModel": "keras_building",
    "Model": "model",
    "NetworkModel": "models",
    "Stream": "layers",
    "TowerRows": "layers",
    "VariableSpec": "model",
    "build_keras": "keras_building",
    "build_model": "models",
    "count_costs": "keras_costs",
    "parameter_count": "model",
    "require_code": "source_check",
}
__all__ = [*_MODULES]
__getattr__ = exports(__name__, _MODULES)
