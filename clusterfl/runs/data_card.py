"""``data.json``: who the clients of a run are, and how its samples and classes are to be read. There from the start."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clusterfl.config import GIVEN, Config
from clusterfl.data.population import Population
from clusterfl.errors import ConfigError, DataError
from clusterfl.method import Method
from clusterfl.methods import METHODS
from clusterfl.outside import reference_of
from clusterfl.runs.files import read_bounded, write_whole

DATA = "data.json"
LARGEST = 1 << 28  # bytes


def data_card(config: Config, population: Population) -> dict[str, Any]:
    """A population in names, as JSON."""
    return {
        "format": 1,
        "from_python": from_python(config),
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
        "outputs": population.outputs,
        "class_names": None if names is None else list(names),
        **({"categories": {n: list(words) for n, words in said.items()}} if (said := population.categories) else {}),
    }


def from_python(config: Config) -> list[str]:
    """What of a run is not in its config: the run can be rebuilt from the config alone where this is empty."""

    def known(method: Method[Any]) -> bool:
        found = METHODS.get(method.name) is type(method) or reference_of(type(method)) is not None
        return found and all(known(base) for base in method.bases())

    given = {
        "data": config.data.source == GIVEN,
        "model": config.model.name == GIVEN,
        "method": not known(config.method),
    }
    return [name for name, is_given in given.items() if is_given]


def check_rebuildable(folder: Path, remedy: str, needs: Sequence[str] = ("data", "model", "method")) -> None:
    """Refuses to take up a run from its config alone where that is not all of it."""
    card = read_data_card(folder)
    given = [name for name in needs if card is not None and name in card["from_python"]]
    if given:
        raise ConfigError(f"{folder} was started from Python with its own {' and '.join(given)}; {remedy}")


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
