"""``data.json``: who the clients of a run are, and how its samples and classes are to be read. There from the start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from clusterfl.config import GIVEN, Config
from clusterfl.data.population import Population
from clusterfl.errors import ConfigError, DataError
from clusterfl.method import Method
from clusterfl.methods import METHODS
from clusterfl.runs.files import read_bounded, write_whole

DATA = "data.json"
LARGEST = 1 << 28  # bytes


def data_card(config: Config, population: Population) -> dict[str, Any]:
    """A population in names, as JSON."""
    return {
        "format": 1,
        "rebuildable": is_rebuildable(config),
        "data": population.name,
        "sha256": population.digest,
        "clients": list(population.names[: population.clients]),
        "unseen": list(population.names[population.clients :]),
        **readings(population),
    }


def readings(population: Population) -> dict[str, Any]:
    """What one needs to give a sample to a model, and to read its answer."""
    names, columns, pixels = population.class_names, population.feature_names, population.pixels
    return {
        "input_shape": list(population.input_shape),
        "dtype": str(population.train.x.dtype).removeprefix("torch."),
        "feature_names": None if columns is None else list(columns),
        "pixels": None if pixels is None else {"white": pixels[0], "scaled": pixels[1]},
        "classes": population.classes,
        "class_names": None if names is None else list(names),
    }


def is_rebuildable(config: Config) -> bool:
    """Whether data, model and method are all in the config, and nothing of them came from Python."""

    def known(method: Method[Any]) -> bool:
        return METHODS.get(method.name) is type(method) and all(known(base) for base in method.bases())

    return config.data.source != GIVEN and config.model.name != GIVEN and known(config.method)


def check_rebuildable(folder: Path, what: str) -> None:
    """Refuses to take up a run from its config alone where that is not all of it."""
    card = read_data_card(folder)
    if card is not None and not card.get("rebuildable", True):
        raise ConfigError(f"{folder} was started from Python with data, a model or a method of its own; {what}")


def write_data_card(folder: Path, config: Config, population: Population) -> None:
    write_whole(folder / DATA, (json.dumps(data_card(config, population), indent=2) + "\n").encode())


def read_data_card(folder: Path) -> dict[str, Any] | None:
    """None where an older version wrote the run."""
    path = folder / DATA
    if not path.exists():
        return None
    try:
        found: dict[str, Any] = json.loads(read_bounded(path, LARGEST))
        if found["format"] != 1 or not isinstance(found["classes"], int):
            raise ValueError("another version wrote it")
    except (OSError, ValueError, LookupError, TypeError) as e:
        raise DataError(f"{path} should be what `clusterfl run` wrote, but: {e}") from None
    return found


def classes_of(card: dict[str, Any]) -> tuple[str, ...]:
    """The names of a run's classes; numbers where they have none."""
    return tuple(card["class_names"] or map(str, range(card["classes"])))
