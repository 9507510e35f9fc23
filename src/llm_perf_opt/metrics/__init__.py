"""What ncu can count on which GPU, as data: one catalogue of counters, levels and their costs."""
