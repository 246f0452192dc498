"""Eigenvalues of mixing matrices and of schedules, and the convergence that they promise."""
