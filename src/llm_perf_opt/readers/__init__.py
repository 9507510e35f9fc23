"""One file a format: from a recording on disk to columns. Readers know nothing of analysis."""
