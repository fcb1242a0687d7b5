"""What products with a symmetric matrix tell of it: eigenpairs, traces of functions, diagonals, solutions."""
