"""A clock for deadlines that only what a test does moves."""

__all__ = ["Clock"]


class Clock:
    """Stands still unless work moves `now`, or each reading does.

    Args: step: seconds by which a reading moves it.
    """

    def __init__(self, step: float = 0.0) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now
