"""Running the profilers: finding them, telling them what to record, watching over them."""
