"""Square roots of posterior covariances of weights."""
