"""The condition WᵀW ⪯ T: Gram matrices, choices of T, orthonormal weights, matrix inequalities."""
