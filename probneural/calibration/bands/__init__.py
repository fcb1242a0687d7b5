"""Conformal bands around predicted fields."""
