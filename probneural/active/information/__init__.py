"""Information gain and integrated variance of observing whole fields."""
