"""Scales of predictive variances: one factor, local factors, by lead, and mixtures of scales."""
