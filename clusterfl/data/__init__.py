"""What clients hold: sources, partition, shift, population."""

from clusterfl.data.config import DataConfig
from clusterfl.data.fetch import download, verify
from clusterfl.data.population import Population, Shards
from clusterfl.data.scenario import build, describe
from clusterfl.data.source import Source, to_float
from clusterfl.data.sources import SOURCES, data_root, load_source

__all__ = [
    "SOURCES",
    "DataConfig",
    "Population",
    "Shards",
    "Source",
    "build",
    "data_root",
    "describe",
    "download",
    "load_source",
    "to_float",
    "verify",
]
