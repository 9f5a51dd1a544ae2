"""The config: a TOML file, ``a.b=c`` overrides, and the typed values that they describe."""

from clusterfl.config.schema import CheckpointConfig, Config, ModelConfig

__all__ = ["CheckpointConfig", "Config", "ModelConfig"]
