"""What a GPU reaches in practice: measured once, kept, and shown with the printed peaks."""
