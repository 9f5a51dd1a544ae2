"""The clients that a run is to admit: its own unseen ones, or others, read as the run's were."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.config import Config
from clusterfl.config.errors import naming
from clusterfl.data.population import Population
from clusterfl.data.registry import is_own
from clusterfl.data.scenario import build
from clusterfl.data.user_data import lacks_labels
from clusterfl.data.user_tables import columns_behind
from clusterfl.data_root import data_root
from clusterfl.errors import ConfigError, DataError
from clusterfl.runs.data_card import classes_of


class Newcomers(NamedTuple):
    """Clients to be admitted: ``ids`` of the population."""

    population: Population
    ids: Tensor
    labelled: bool = True  # False: all that they bring are inputs


def newcomers(config: Config, data: str | Population | None, card: dict[str, Any] | None) -> Newcomers:
    """Those of ``data``, or the run's own unseen ones.

    New data is read as the run's was: the same columns in the same order, and the same classes.
    """
    if data is None:
        population = config.population()
        if not population.unseen:
            raise ConfigError("data.unseen=0: the run has no unseen clients; name new ones with --data folder:PATH")
        return Newcomers(population, torch.arange(population.clients, len(population.train)))
    labelled = True
    if isinstance(data, Population):
        population = data
    else:
        if not is_own(data):
            raise ConfigError(f"data={data!r} should be folder:PATH, table:PATH or FILE.py:FUNCTION")
        with naming("data"):
            features = () if card is None else columns_behind(card["feature_names"] or (), categories_of(card))
            where, column = data_root(config.data.root), config.data.label_column
            labelled = card is None or not lacks_labels(data, where, column, features)
        population = read_newcomers(config, data, card, labelled=labelled)
    if card is not None:
        check_alike(population, card)
    if config.data.indicators:  # the run's own public samples, which its clients know
        population = replace(population, indicators=config.population().indicators)
    return Newcomers(population, torch.arange(len(population.train)), labelled)


def check_alike(population: Population, card: dict[str, Any]) -> None:
    """New clients have the run's samples and classes."""
    shape, classes = tuple(card["input_shape"]), classes_of(card)
    mine = population.class_names or tuple(map(str, range(population.classes)))
    if population.input_shape != shape:
        raise DataError(f"new clients' samples of shape {population.input_shape} should be like the run's, {shape}")
    if mine != classes:
        raise DataError(
            f"new clients' classes ({', '.join(mine[:5])}, …) should be the run's; class_names={list(classes)[:10]}"
        )


def categories_of(card: dict[str, Any] | None) -> dict[str, tuple[str, ...]]:
    """The words of the run's columns of words."""
    return {name: tuple(words) for name, words in (card or {}).get("categories", {}).items()}


def read_newcomers(config: Config, data: str, card: dict[str, Any] | None, *, labelled: bool = True) -> Population:
    """A folder or table of new clients: all that they hold, however the run's own clients were cut."""
    table = data.startswith("table:")
    features = card["feature_names"] if table and card is not None else None
    categories = categories_of(card)
    natural = replace(
        config.data,
        source=data,
        split="natural",
        shift="none",
        clients=0,
        unseen=0,
        samples=None,
        min_samples=None,
        sizes="equal",
        alpha=None,
        test="own",
        indicators=0,
        drift_round=None,
        client_column=config.data.client_column if table else None,
        label_column=config.data.label_column if table else None,
        feature_columns=None if features is None else columns_behind(features, categories),
        categorical=config.data.categorical if table else None,
    )
    key = keys.fold_in(keys.key(config.seed), "newcomers")
    with naming("data"):
        known = None if card is None or config.task.regression else classes_of(card)
        return build(
            natural, key, classes=known, categories=categories, regression=config.task.regression, labelled=labelled
        )
