"""The heart: what a region is, which GPU work belongs to it, and how values roll up. Imports nothing of ours."""
