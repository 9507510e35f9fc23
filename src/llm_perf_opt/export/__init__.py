"""Results for other programs: a trace for Perfetto, tables for notebooks."""
