"""Other processes and signals: programs under supervision, tasks in the background, interrupts."""
