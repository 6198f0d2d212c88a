"""``CertifiedModel``: a frozen network with its certificate, for ``from_pretrained`` and ``push_to_hub``.

A folder holds model.safetensors, certificate.json with its inputs, the checker and a README that states the
guarantee; every number in the README follows from the certificate. Loading compares the tensors with the hashes of
the certificate and unpickles nothing. Whether the certificate is true is for check.py to say.
"""

from __future__ import annotations

import json
import shutil
from importlib import resources
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from lipcert.exports.files import Certificate, beside, load_frozen, unfinished, write_network
from lipcert.exports.records import describe
from lipcert.proofs.audit import chain

try:
    from huggingface_hub import ModelCard, PyTorchModelHubMixin, snapshot_download
except ImportError:
    raise ImportError(
        "the hub needs the package huggingface_hub; got none installed. Run pip install 'lipcert[export]'."
    ) from None

WEIGHTS = "model.safetensors"
RADII = {"36/255": 36 / 255, "72/255": 72 / 255, "108/255": 108 / 255, "0.5": 0.5, "1": 1.0}
OF_A_RUN = ("state.pt", "metrics.jsonl", "imported.json", "certified.jsonl")


class CertifiedModel(nn.Module, PyTorchModelHubMixin):
    """The network that a certificate is about, from a folder that holds both: a run, or a download.

    ``network`` is the frozen network, ``certificate`` what is claimed of it.
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        self.folder = Path(folder)
        self.network = load_frozen(self.folder)
        certificate = Certificate.of_folder(self.folder)
        assert certificate is not None  # load_frozen needed it
        self.certificate = certificate
        self._hub_mixin_config = {"library": "lipcert", "input_shape": list(certificate.input_shape)}

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
        """Write the folder; its README is written anew, so that it states what this certificate says.

        ``config`` and ``model_card_kwargs`` are of the mixin's signature: there is nothing in them to choose.
        """
        target = Path(save_directory)
        if config not in (None, self._hub_mixin_config) or model_card_kwargs:
            raise ValueError("config and card follow from the certificate; got other ones. Leave them out.")
        if any((target / name).exists() for name in OF_A_RUN) or target.resolve() == self.folder.resolve():
            raise ValueError(f"expected a folder of its own for the model; got {target}, in use. Choose another.")
        return super().save_pretrained(target, repo_id=repo_id, push_to_hub=push_to_hub, **push_to_hub_kwargs)

    def _save_pretrained(self, save_directory: Path) -> None:
        content = self.certificate.content
        inputs = beside(self.folder, content["inputs"]["file"])
        renamed = json.dumps({**content, "weights": WEIGHTS}, indent=1, ensure_ascii=False) + "\n"
        certificate = Certificate.parse(renamed, save_directory / "certificate.json")
        records = describe(chain(self.network, certificate.input_shape))
        if different := certificate.differs_from(records):
            raise ValueError(f"the network must be the certified one; got another {different}. Load it again.")
        with unfinished(save_directory / WEIGHTS) as path:
            write_network(path, records, certificate.input_shape)
        with unfinished(save_directory / inputs.name) as path:
            shutil.copyfile(inputs, path)
        texts = {
            "check.py": (resources.files("lipcert") / "check.py").read_text(encoding="utf-8"),
            "config.json": json.dumps(self._hub_mixin_config, indent=2) + "\n",
            "README.md": model_card(certificate),
            "certificate.json": renamed,  # last: where it is, the rest is
        }
        for name, text in texts.items():
            with unfinished(save_directory / name) as path:
                path.write_text(text, encoding="utf-8")

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        """The README as an object of huggingface_hub."""
        return ModelCard(model_card(self.certificate))

    @classmethod
    def _from_pretrained(  # type: ignore[override]
        cls,
        *,
        model_id: str,
        revision: str | None,
        cache_dir: str | Path | None,
        force_download: bool,
        local_files_only: bool,
        token: str | bool | None,
        map_location: str = "cpu",
    ) -> CertifiedModel:
        folder = model_id
        if not Path(model_id).is_dir():
            folder = snapshot_download(
                model_id,
                revision=revision,
                cache_dir=cache_dir,
                force_download=force_download,
                local_files_only=local_files_only,
                token=token,
                allow_patterns=["*.safetensors", "certificate.json", "config.json"],
            )
        return cls(folder).to(map_location).eval()


def model_card(certificate: Certificate) -> str:
    """What is guaranteed, for which inputs, how to check it, and what is not."""
    content, inputs = certificate.content, certificate.content["inputs"]
    shape = "×".join(str(size) for size in certificate.input_shape)
    radii = {"any": 0.0, **RADII}
    shares = [f"{100 * certificate.certified_accuracy(radius):.2f}" for radius in radii.values()]
    about = " ".join(inputs["about"].split()).replace("|", "/") or "not named"
    task = "pipeline_tag: image-classification\n" if len(certificate.input_shape) == 3 else ""
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
real arithmetic and in **{content["arithmetic"]}** with sums in any order.

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
logits = model(images)  # (N, {", ".join(str(size) for size in certificate.input_shape)}), float32
```

Loading compares the tensors with the hashes in the certificate and unpickles nothing.

## What is not claimed

- Anything about inputs that are not listed, or beyond their radius.
- Other norms, and changes before the tensor is made: resizing, compression, cropping.
- float32, bfloat16, a GPU or another runtime: where two classes nearly tie, its answer may be another.
  `lipcert.FilteredClassifier` answers in float32 without contradicting the certificate.
- That the accuracy on other data is the one above.
"""
