"""Two runs side by side: what changed, whether it is more than noise, and why."""
