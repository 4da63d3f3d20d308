"""What the server tells of itself: `/metrics` and the log."""
