"""The config: a TOML file, ``a.b=c`` overrides, and the typed values that they describe."""

from clusterfl.config.schema import GIVEN, CheckpointConfig, Config, ModelConfig

__all__ = ["GIVEN", "CheckpointConfig", "Config", "ModelConfig"]
