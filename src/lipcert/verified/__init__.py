"""Proved bounds of norms and eigenvalues in float64, with numpy alone; docs/rounding.md proves every constant.

What is proved is about the exact numbers stored in the arrays. Upper bounds are rounded up, lower bounds down, and
where a proof fails (NaN, infinities, a negative γ, an arithmetic that is not IEEE 754) the bound is infinite.
"""
