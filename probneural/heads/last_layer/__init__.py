"""Posteriors of the last layer: closed form, chains and variational inference."""
