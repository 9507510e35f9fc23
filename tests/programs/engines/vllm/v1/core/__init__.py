"""A stand-in: see server.py."""
