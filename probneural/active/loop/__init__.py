"""The active-learning loop."""
