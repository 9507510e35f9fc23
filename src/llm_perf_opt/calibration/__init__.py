"""What a GPU reaches in practice: measured once, kept, and shown beside the printed peaks."""
