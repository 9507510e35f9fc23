"""Hydra groups and the table of all keys. Knows nothing of the rest."""
