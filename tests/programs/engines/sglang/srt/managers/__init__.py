"""A stand-in: see sglang_server.py."""
