"""Square roots of covariances of fields: dense, of features, modulated, and sums of them."""
