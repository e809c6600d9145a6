"""Generated Triton kernels for CUDA devices. Importing this registers the backend and does not import Triton."""

from flashgp.pairwise.triton.backend import TritonTiles

__all__ = ["TritonTiles"]
