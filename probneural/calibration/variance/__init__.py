"""Scales of predictive variances: global, local, by lead, and scale mixtures."""
