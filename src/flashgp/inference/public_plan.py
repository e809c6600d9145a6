"""`fgp.plan`: plans that a user asks for. Data may be an empty batch of models; a question about none is a mistake."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from flashgp.foundations.checks import check_count
from flashgp.inference.plan import plan_for

__all__ = ["plan"]

Planner = TypeVar("Planner", bound=Callable[..., Any])


def _of_models(planner: Planner) -> Planner:
    """The same function, for one model or more."""

    @functools.wraps(planner)
    def plan(*sizes: Any, batch: int = 1, **options: Any) -> Any:
        return planner(*sizes, batch=check_count(batch, "batch", 1), **options)

    plan.__name__ = plan.__qualname__ = "plan"
    plan.__module__ = __name__
    return cast(Planner, plan)


plan = _of_models(plan_for)
