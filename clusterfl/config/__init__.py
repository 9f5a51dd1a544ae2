"""The config: a TOML file, ``a.b=c`` overrides, and the typed values that they describe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterfl.lazy import lazy

__all__ = ["GIVEN", "CheckpointConfig", "Config", "ModelConfig"]

if TYPE_CHECKING:
    from clusterfl.config.schema import CheckpointConfig, Config, ModelConfig
    from clusterfl.data.config import GIVEN

__getattr__ = lazy(__name__, dict.fromkeys(__all__, "schema"))  # errors and TOML files can be read without PyTorch
