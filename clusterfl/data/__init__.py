"""What clients hold: sources, partition, shift, population."""

from clusterfl.data.config import DataConfig
from clusterfl.data.download import download, verify
from clusterfl.data.population import Population
from clusterfl.data.registry import SOURCES, data_root, load_source
from clusterfl.data.scenario import build, describe
from clusterfl.data.shards import Shards
from clusterfl.data.source import Source, to_float

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
