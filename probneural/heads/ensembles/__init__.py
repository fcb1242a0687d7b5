"""Ensembles of independently trained operators."""
