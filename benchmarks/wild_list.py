"""The list of foreign models in wild/models.toml: what each is, which recipe makes it, what it has to show."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).with_name("wild")
LIST = SCRIPTS / "models.toml"
MOST = 4  # models that an error names


@dataclass(frozen=True)
class Model:
    """An entry of the list; its comments say what the fields mean."""

    name: str
    family: str
    recipe: str
    weights: str
    exporter: str
    opset: int
    features: tuple[str, ...]
    outputs: tuple[str, ...]
    package: str | None = None
    refused: str | None = None


def listed(path: Path = LIST) -> tuple[list[Model], dict[str, int]]:
    """All models in the list's order, and of each family how many have to agree."""
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    return [_model(entry) for entry in document["model"]], dict(document["least"])


def _model(entry: Mapping[str, Any]) -> Model:
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    return Model(**fields)


def chosen(names: str | None, models: Iterable[Model]) -> list[Model]:
    """All models, or those whose name or family is one of these, separated by commas, in the list's order."""
    every = {model.name: model for model in models}
    wanted = names.split(",") if names else list(every)
    unknown = set(wanted).difference(every, (model.family for model in every.values()))
    if unknown:
        named = ", ".join(sorted(unknown)[:MOST])
        raise SystemExit(f"no model or family {named} in {LIST.name}; there are {', '.join(every)}")
    return [model for model in every.values() if {model.name, model.family} & set(wanted)]
