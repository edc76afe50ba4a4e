from gputopo.api import Inspection as Inspection
from gputopo.api import Plan as Plan
from gputopo.api import Result as Result
from gputopo.api import Runs as Runs
from gputopo.api import inspect as inspect
from gputopo.api import load as load
from gputopo.api import load_runs as load_runs
from gputopo.api import plan as plan
from gputopo.api import run as run
from gputopo.launch.user_strategy import strategy as strategy
from gputopo.values.errors import GputopoError as GputopoError

__version__: str
__all__: list[str]
