"""Ensembles: of independently trained operators, and of draws from a posterior by randomised optimisation."""
