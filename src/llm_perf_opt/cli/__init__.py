"""The command line: one file a verb. Nothing is computed here, and nothing heavy is imported before it is needed."""
