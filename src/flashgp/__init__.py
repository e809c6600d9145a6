"""FlashGP: exact Gaussian processes on PyTorch, planned, measured and certified."""

__version__ = "0.1.0"
