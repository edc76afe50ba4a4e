"""How CUDA is asked: one call at a time through cuda.bindings, and one exception for all that is refused."""

import contextlib
from typing import Any, NewType

from gputopo.values.errors import HardwareError

Stream = NewType("Stream", object)
Event = NewType("Event", object)
Kernel = NewType("Kernel", object)

ABSENT = "FUNCTION_NOT_FOUND"  # our name for a function that this driver lacks; CUDA has none for it
UNKNOWN = "CUDA_ERROR_UNKNOWN"


class NoCudaError(HardwareError):
    """CUDA cannot be used at all. `reason`: the driver's name for why, or LIBRARY_MISSING, LIBRARY_ODD."""

    def __init__(self, reason: str, says: str, remedy: str) -> None:
        super().__init__(says, remedy)
        self.reason = reason
        self.says = says
        self.remedy = remedy


class CudaError(Exception):
    """One call that was refused. `reason` is the driver's name (`CUDA_ERROR_...`), `says` what it means."""

    def __init__(self, reason: str, says: str) -> None:
        super().__init__(f"{says} ({reason})")
        self.reason = reason
        self.says = says


def nameless(function: str, error: ValueError) -> CudaError:
    """Make the error of a result code that cuda.bindings has no name for ("35 is not a valid CUresult")."""
    number = str(error).split(" ", 1)[0]
    reason = f"CUDA_ERROR_{number}" if number.isdecimal() else UNKNOWN
    return CudaError(reason, f"{function} failed with a code that is not known: {error}")


class CudaCalls:
    """One call to CUDA. What the bindings do wrong with every call is worked round here."""

    def __init__(self, binding: Any) -> None:
        self._binding = binding

    def ask(self, function: str, *args: object) -> Any:
        """Call one function: None, its one result, or the tuple of them. Raises CudaError.

        A function that the driver lacks, or a missing library, is a RuntimeError of cuda.bindings; a result
        code that it does not know is a ValueError of its enumeration. Older bindings lack some functions.
        """
        call = getattr(self._binding, function, None)
        if call is None:
            raise CudaError(ABSENT, f"cuda-bindings has no {function}")
        try:
            code, *results = call(*args)
        except RuntimeError as error:
            raise CudaError(ABSENT, f"the driver has no {function}: {error}") from error
        except ValueError as error:
            raise nameless(function, error) from error
        if int(code):
            raise CudaError(self._name(code), f"{function}: {self._says(code)}")
        return results[0] if len(results) == 1 else tuple(results) or None

    def _name(self, code: Any) -> str:
        return str(getattr(code, "name", None) or f"CUDA_ERROR_{int(code)}")

    def _says(self, code: Any) -> str:
        with contextlib.suppress(RuntimeError, ValueError):
            refused, text = self._binding.cuGetErrorString(code)
            if not int(refused) and text:
                return bytes(text).split(b"\0")[0].decode(errors="replace")
        return self._name(code).removeprefix("CUDA_ERROR_").replace("_", " ").lower()
