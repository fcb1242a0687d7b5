"""Conformal and risk-controlled bands around predicted fields."""
