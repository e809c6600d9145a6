"""Model files: one safetensors file holds a posterior, to predict with and to go on learning from.

    save(posterior, "model.safetensors")
    posterior = load("model.safetensors")

Reading executes nothing: kinds come from the registries, numbers from the tensors, foreign modules from the caller.
"""

from flashgp.files.model import load, load_metadata, save

__all__ = ["load", "load_metadata", "save"]
