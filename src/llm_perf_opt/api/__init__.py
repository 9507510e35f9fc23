"""From what a user names to a finished report: inputs, reports, data frames."""
