"""Variational inference over all weights of a network."""
