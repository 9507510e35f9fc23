"""NVIDIA's profilers as programs: where they are, what they are asked, and what their messages mean."""
