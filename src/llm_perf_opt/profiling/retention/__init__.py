"""What becomes of runs when they are over: found, told, packed, removed."""
