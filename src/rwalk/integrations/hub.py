"""Estimators on the Hugging Face Hub: `push_to_hub`, `save_pretrained` and `from_pretrained`, with a model card.

    from rwalk.integrations.hub import IncrementalClassifier

    clf = IncrementalClassifier.load("animals.safetensors")  # or learn with it from the start
    clf.push_to_hub("your-name/animals")
    clf = IncrementalClassifier.from_pretrained("your-name/animals")

The Hub gets the file of `save`, which holds no code. `from_pretrained` checks it as `load` does.
"""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any, ClassVar, Self

import rwalk
from rwalk.errors import InputError
from rwalk.escaping import shown

try:
    from huggingface_hub import ModelCard, ModelCardData, ModelHubMixin, hf_hub_download
except ImportError as error:
    raise InputError("the Hub needs huggingface_hub: pip install 'rwalk[hub]'") from error

FILE = "model.safetensors"
CARD = """# {name}

An `{name}` of rwalk {version}. It learns more data, with new {targets}, without the
old data and without forgetting.

```python
from rwalk.integrations.hub import {name}

model = {name}.from_pretrained("…")  # this repository, or a folder
```

{facts}

The file holds no code, and it is checked before anything in it is used.
"""


class _OnTheHub(ModelHubMixin):
    _hub_mixin_config: ClassVar[dict[str, Any]] = {}  # type: ignore[misc]  # the file holds all settings

    def _save_pretrained(self, save_directory: Path) -> None:
        self.save(save_directory / FILE)  # type: ignore[attr-defined]

    @classmethod
    def _from_pretrained(cls, *, model_id: str, **options: Any) -> Self:
        where = ("revision", "cache_dir", "force_download", "local_files_only", "token")
        download = {name: options.pop(name) for name in where if name in options}
        folder = Path(model_id)
        file = folder / FILE if folder.is_dir() else Path(hf_hub_download(model_id, FILE, **download))
        return cls.load(file, **options)  # type: ignore[attr-defined]

    def generate_model_card(self, **data: Any) -> ModelCard:
        """Describe the model: what it learned, its settings, and how to load it."""
        params: dict[str, Any] = self.get_params(deep=False)  # type: ignore[attr-defined]
        facts = [f"- settings: {', '.join(f'`{name}={shown(repr(value))}`' for name, value in params.items())}"]
        classes = getattr(self, "classes_", None)
        if classes is not None:
            names = ", ".join(f"`{shown(str(each))}`" for each in classes[:100])
            facts.insert(0, f"- {len(classes)} classes: {names}{', …' if len(classes) > 100 else ''}")
        about = ModelCardData(library_name="rwalk", tags=["continual-learning", "tabular"], **data)
        text = CARD.format(
            name=type(self).__name__,
            version=rwalk.__version__,
            targets="numbers" if classes is None else "classes",
            facts="\n".join(facts),
        )
        return ModelCard(f"---\n{about}\n---\n\n{text}")


class IncrementalClassifier(_OnTheHub, rwalk.IncrementalClassifier):
    """`rwalk.IncrementalClassifier` with `push_to_hub`, `save_pretrained` and `from_pretrained`."""

    __signature__ = signature(rwalk.IncrementalClassifier)  # the mixin's `__new__` hides it


class IncrementalRegressor(_OnTheHub, rwalk.IncrementalRegressor):
    """`rwalk.IncrementalRegressor` with `push_to_hub`, `save_pretrained` and `from_pretrained`."""

    __signature__ = signature(rwalk.IncrementalRegressor)  # the mixin's `__new__` hides it
