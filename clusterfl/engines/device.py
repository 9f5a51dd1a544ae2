"""Where clients compute."""

from __future__ import annotations

import torch

from clusterfl.errors import ConfigError


def check_device(device: str) -> None:
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise ConfigError(f"device={device!r} should be a PyTorch device such as 'cpu' or 'cuda:0'") from None
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there.get(kind, False):
        raise ConfigError(f"device={device!r} should be a device that this machine has, for example 'cpu'")
