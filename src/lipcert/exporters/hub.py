"""``CertifiedModel``: a frozen network with its certificate, for ``from_pretrained`` and ``push_to_hub``.

A folder holds model.safetensors, certificate.json with its inputs, the checker and a README that states the
guarantee; every number in the README follows from the certificate. Loading compares the tensors with the hashes of
the certificate and unpickles nothing. It does not verify the certificate: check.py does.
"""

from __future__ import annotations

import json
import re
import shutil
from importlib import resources
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from lipcert.certified.freeze import prove
from lipcert.certified.records import describe
from lipcert.exporters.files import (
    Certificate,
    beside,
    load_certified,
    parse_json,
    read_text,
    write_network,
)
from lipcert.files import atomic_file

try:
    from huggingface_hub import ModelCard, PyTorchModelHubMixin, snapshot_download
    from huggingface_hub.errors import HFValidationError
except ImportError:
    raise ImportError(
        "the hub needs the package huggingface_hub, which is not installed. Run pip install 'lipcert[export]'."
    ) from None

WEIGHTS, ZOO = "model.safetensors", "zoo.json"  # the second is there for networks of the zoo
RADII = {"36/255": 36 / 255, "72/255": 72 / 255, "108/255": 108 / 255, "0.5": 0.5, "1": 1.0}

ON_THE_HUB = """\
## Check it

```text
hf download REPOSITORY --local-dir model
cd model
python check.py certificate.json
```

The checker needs numpy alone and trusts no other file of this folder; take `check.py` from lipcert if you do not
trust this copy. It proves the constant of every layer, evaluates every listed input and recomputes every radius.

## Use it

```python
from lipcert import CertifiedModel

model = CertifiedModel.from_pretrained("REPOSITORY")
logits = model(images)  # (N, {shape}), float32
```

Loading compares the tensors with the hashes in the certificate and unpickles nothing."""


class CertifiedModel(nn.Module, PyTorchModelHubMixin):
    """The network that a certificate is about, from a folder that holds both: a run, or a download.

    ``network`` is the frozen network and ``certificate`` is what is claimed about it.

    Raises:
        ValueError: for a folder without a certificate, or whose files are damaged or belong to another network.
        OSError: for a file that cannot be read.
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        self.folder = Path(folder)
        self.network, self.certificate = load_certified(self.folder)
        self._hub_mixin_config = {"library": "lipcert", "input_shape": list(self.certificate.input_shape)}

    def forward(self, x: Tensor) -> Tensor:  # (N, *input_shape) → (N, classes)
        return self.network(x)

    def save_pretrained(
        self,
        save_directory: str | Path,
        *,
        config: Any = None,
        repo_id: str | None = None,
        push_to_hub: bool = False,
        model_card_kwargs: dict[str, Any] | None = None,
        **push_to_hub_kwargs: Any,
    ) -> str | None:
        """Write the folder, with a new README that states what this certificate says.

        ``config`` and ``model_card_kwargs`` belong to the signature of the mixin and must be left out, because both
        follow from the certificate.
        """
        target = Path(save_directory)
        if config not in (None, self._hub_mixin_config) or model_card_kwargs:
            raise ValueError("config and card follow from the certificate. Leave them out.")
        if (target / "run.json").exists() or target.resolve() == self.folder.resolve():
            raise ValueError(f"expected a folder of its own for the model; got {target}, in use. Choose another.")
        return super().save_pretrained(target, repo_id=repo_id, push_to_hub=push_to_hub, **push_to_hub_kwargs)

    def _save_pretrained(self, save_directory: Path) -> None:
        content = self.certificate.content
        inputs = beside(self.folder, content["inputs"]["file"])
        renamed = json.dumps({**content, "weights": WEIGHTS}, indent=1, ensure_ascii=False) + "\n"
        certificate = Certificate.parse(renamed, save_directory / "certificate.json")
        records = describe(prove(self.network, certificate.input_shape))
        if different := certificate.differs_from(records):
            raise ValueError(f"the network must be the certified one; got another {different}. Load it again.")
        with atomic_file(save_directory / WEIGHTS) as path:
            write_network(path, certificate.stored(records))
        with atomic_file(save_directory / inputs.name) as path:
            shutil.copyfile(inputs, path)
        if (self.folder / ZOO).is_file():
            with atomic_file(save_directory / ZOO) as path:
                shutil.copyfile(self.folder / ZOO, path)
        texts = {
            "check.py": (resources.files("lipcert") / "check.py").read_text(encoding="utf-8"),
            "config.json": json.dumps(self._hub_mixin_config, indent=2) + "\n",
            "README.md": model_card(certificate),
            "certificate.json": renamed,  # last: where it is, the rest is
        }
        for name, text in texts.items():
            with atomic_file(save_directory / name) as path:
                path.write_text(text, encoding="utf-8")

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        """The README as an object of huggingface_hub."""
        return ModelCard(model_card(self.certificate))

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        force_download: bool = False,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
        revision: str | None = None,
        map_location: str = "cpu",
    ) -> CertifiedModel:
        """Load a model from a folder, or download it from the hub first.

        The mixin would pass what config.json says to the constructor. Here the certificate says everything, and a
        config.json must agree with it.

        Raises:
            ValueError: as the constructor, and for a config.json that does not belong to the certificate.
            OSError: for a file that cannot be read, or a model that cannot be downloaded.
        """
        place = Path(pretrained_model_name_or_path)
        if place.exists() and not place.is_dir():
            raise ValueError(
                f"expected a folder or the name of a model on the hub; got the file {place}. Pass its folder."
            )
        folder = str(place)
        if not place.is_dir():
            try:
                folder = snapshot_download(
                    str(pretrained_model_name_or_path),
                    revision=revision,
                    cache_dir=cache_dir,
                    force_download=force_download,
                    local_files_only=local_files_only,
                    token=token,
                    allow_patterns=["*.safetensors", "certificate.json", "config.json", ZOO],
                )
            except HFValidationError:
                raise ValueError(
                    f"expected a folder or the name of a model on the hub, such as someone/model; got "
                    f"{place}. Check the spelling."
                ) from None
        model = cls(folder)
        model._require_config(Path(folder) / "config.json")
        return model.to(map_location).eval()

    def _require_config(self, path: Path) -> None:
        """Raise ValueError if there is a config.json that does not agree with the certificate."""
        if not path.exists():
            return  # the folder of a run has none
        config = parse_json(read_text(path)) if path.is_file() else None
        if config != self._hub_mixin_config:
            raise ValueError(
                f"{path} must hold {json.dumps(self._hub_mixin_config)}, which follows from the certificate; got "
                "something else. Delete it, or download the model again."
            )


def _assumptions(certificate: Certificate) -> str:
    """One sentence about what the certificate assumes of the platform; empty if it assumes nothing."""
    if not certificate.assumes:
        return ""
    texts = [re.sub(r"\bulp\b", "units in the last place", _one_line(text)) for text in certificate.assumes]
    listed = texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"
    return f"\n\nThe certificate assumes that the platform computes {listed}; the checker verifies everything else."


def _one_line(text: str) -> str:
    """Text of a certificate as part of a line, also of a line in a table."""
    return " ".join(text.split()).replace("|", "/")


def model_card(certificate: Certificate, sections: str = ON_THE_HUB) -> str:
    """Say what is guaranteed, for which inputs, how to check it, and what is not claimed.

    ``sections`` say how to check and to use it; {shape} in them is the shape of an input.
    """
    content, inputs = certificate.content, certificate.content["inputs"]
    shape = "×".join(str(size) for size in certificate.input_shape)
    radii = {"any": 0.0, **RADII}
    shares = [f"{100 * certificate.certified_accuracy(radius):.2f}" for radius in radii.values()]
    about = _one_line(inputs["about"]) or "not named"
    task = "pipeline_tag: image-classification\n" if len(certificate.input_shape) == 3 else ""
    sections = sections.replace("{shape}", ", ".join(str(size) for size in certificate.input_shape))
    values = "bytes divided by 255" if inputs["divide_by"] == 255 else "float32 numbers as they are"
    return f"""---
library_name: lipcert
{task}tags:
- certified-robustness
- lipschitz
- model_hub_mixin
- pytorch_model_hub_mixin
---

# A classifier with certified radii

`certificate.json` lists {len(content["claims"]):,} inputs, each with its class and a radius: every input closer to
it than that radius, in the **{content["norm"]}** norm, is given that class. This holds for the stored numbers, in
real arithmetic and in **{content["arithmetic"]}** with sums in any order.{_assumptions(certificate)}

| | |
|---|---|
| norm | {content["norm"]}, of inputs of shape {shape} |
| arithmetic | real and {content["arithmetic"]} |
| Lipschitz constant before the last linear layer | at most {certificate.lipschitz!r} |
| data | {about}: {inputs["count"]:,} inputs, {values} |

Share of these inputs that have the right class and keep it within more than the radius (%):

| {" | ".join(radii)} |
|{"---:|" * len(radii)}
| {" | ".join(shares)} |

{sections}

## What is not claimed

- Anything about inputs that are not listed, or beyond their radius.
- Other norms, and changes before the tensor is made: resizing, compression, cropping.
- float32, bfloat16, a GPU or another runtime: where two classes nearly tie, its answer may be another.
  `lipcert.FilteredClassifier` answers in float32 without contradicting the certificate.
- That the accuracy on other data is the one above.
"""
