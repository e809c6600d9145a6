"""Other libraries' models and FlashGP's: `interop.botorch.FlashGPModel`, `interop.gpytorch.from_gpytorch`.

Neither library is needed for anything else, and neither is imported before one of these modules is.
"""

import importlib
import importlib.util
from typing import Any

from flashgp.foundations.errors import BackendUnavailableError
from flashgp.foundations.lazy_import import lazy_import

__all__ = ["botorch", "gpytorch"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'flashgp.interop' has no attribute {name!r}")
    if importlib.util.find_spec(name) is None:
        raise BackendUnavailableError(
            f"{name} is not installed, got fgp.interop.{name}; pip install 'flashgp[botorch]'"
        )
    lazy_import(f"flashgp.interop.{name}")
    return importlib.import_module(f"flashgp.interop.{name}")


def __dir__() -> list[str]:
    return __all__
