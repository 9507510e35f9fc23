"""Hydra's groups and presets; the keys and their defaults are in `options`."""
