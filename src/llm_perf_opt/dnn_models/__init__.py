"""Models of our own, and what lets a model mark its parts by itself."""
