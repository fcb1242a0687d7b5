"""Choosing batches from a pool of candidate functions."""
