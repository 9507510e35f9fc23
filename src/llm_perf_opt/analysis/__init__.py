"""Pure functions from columns to a finished report. Nothing here opens a file."""
