"""What observing whole functions tells: information gain, integrated variance."""
