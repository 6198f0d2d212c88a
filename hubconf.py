"""Trained networks for ``torch.hub.load(REPOSITORY, "digits")``: each name of the zoo gives a frozen network."""

import sys
from functools import partial
from pathlib import Path

dependencies = ["torch", "numpy", "pydantic", "rich", "safetensors", "tyro"]
sys.path.insert(0, str(Path(__file__).parent / "src"))

from lipcert.models.build import create_model  # noqa: E402, F401
from lipcert.zoo import list_pretrained, load_pretrained  # noqa: E402


def _network(folder):
    """Load a trained network with its certificate; logits from images in [0, 1]."""
    return load_pretrained(folder).network


for _name, _folder in list_pretrained().items():
    globals()[_name] = partial(_network, _folder)
    globals()[_name].__doc__ = f"The frozen network for {_name}, whose certificate is in {_folder.name}."
