"""Eigenvalues of Hermitian matrices by a Cholesky factor that is checked after the fact.

M − sI = FF* + X for *any* F, with X the defect, so λmin(M) ≥ s − ‖X‖. The factor comes from LAPACK and is a
witness: nothing is assumed about how it was found, or how well. What is bounded is the defect, from plain real
products.

Rounding: ‖X‖ is bounded by row sums, with g_n|F||F|* for the product and one unit for each further operation; it is
rounded up, the eigenvalue down. Complex products are two real ones, so no complex arithmetic is trusted.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from lipcert.verified.rounding import ETA, U64, Array, exponents, g, scaled, up, usable

Matrix = npt.NDArray[Any]  # float64 or complex128


def gram(factor: Matrix) -> tuple[Matrix, Array]:  # (…, p, k) → (…, p, p), (…)
    """FF*, exactly Hermitian, and a bound of the 2-norm of its error. Entries of F must be at most 2¹⁰⁰."""
    real = not np.iscomplexobj(factor)
    left = factor.real if real else np.concatenate([factor.real, factor.imag], axis=-1)
    p, length = left.shape[-2:]
    sizes = np.abs(left)
    frobenius = np.square(sizes).sum(axis=(-2, -1))
    row_sums = (sizes @ sizes.sum(axis=-2)[..., None]).max(axis=(-2, -1), initial=0.0)  # of |F||F|ᵀ
    size = up(np.asarray(np.minimum(frobenius, row_sums)), p * length + p + length)
    error = up(np.asarray(g(length) * size + 4.0 * p * length * ETA), 3)
    lower = np.tril(left @ left.swapaxes(-1, -2))
    product = lower + np.tril(lower, -1).swapaxes(-1, -2)
    if real:
        return product, error
    turned = np.concatenate([factor.imag, -factor.real], axis=-1)
    lower = np.tril(turned @ left.swapaxes(-1, -2), -1)
    return product + 1j * (lower - lower.swapaxes(-1, -2)), 2.0 * error


def defect_up(matrix: Matrix, shift: float | Array, factor: Matrix) -> Array:  # (…, p, p), (…), (…, p, p) → (…)
    """At least ‖M − shift·I − FF*‖₂ for a Hermitian M, the exact numbers in ``matrix`` and ``factor``."""
    p = matrix.shape[-1]
    product, error = gram(factor)
    diagonal = np.arange(p)
    moved = matrix.copy()
    moved[..., diagonal, diagonal] -= np.asarray(shift)[..., None]  # one rounding, at most u times the result
    on_diagonal = np.abs(moved[..., diagonal, diagonal]).max(axis=-1, initial=0.0)
    rest = moved - product
    row_sums = (np.abs(rest.real) + np.abs(rest.imag)).sum(axis=-1).max(axis=-1, initial=0.0)
    return up(np.asarray(row_sums + U64 * on_diagonal + error + 4.0 * p * ETA), p + 8)


def smallest_eigenvalue_down(matrix: npt.ArrayLike) -> float:  # (p, p)
    """A lower bound of λmin of the symmetric or Hermitian matrix with exactly these entries; −∞ if none is proved.

    A matrix that is not exactly Hermitian is refused with ValueError.
    """
    given: npt.NDArray[np.generic] = np.asarray(matrix)
    kinds = (np.float32, np.float64, np.complex64, np.complex128)
    if given.ndim != 2 or given.shape[0] != given.shape[1] or given.dtype not in kinds:
        raise ValueError(f"expected a square matrix of floats; got {given.dtype} of shape {given.shape}.")
    exact: Matrix = given.astype(np.complex128 if given.dtype.kind == "c" else np.float64)
    if not usable(exact.real, exact.imag):
        return -math.inf
    if not np.array_equal(exact, exact.conj().T):
        raise ValueError("the matrix is not symmetric. Pass (A + Aᵀ)/2, computed, and bound the difference.")
    if exact.size == 0:
        return math.inf
    top = int(exponents(np.maximum(np.abs(exact.real), np.abs(exact.imag)).max()))
    unit: Matrix = (
        scaled(exact.real, top) + 1j * scaled(exact.imag, top)
        if np.iscomplexobj(exact)
        else scaled(exact.real, top)
    )
    lower = _smallest_of_unit(unit)
    with np.errstate(all="ignore"):
        value = float(np.ldexp(lower, top)) if math.isfinite(lower) else lower
        lossy = lower != 0 and (abs(value) < 2 * ETA or math.isinf(value))
        return float(np.nextafter(value, -np.inf)) if lossy else value


@np.errstate(all="ignore")
def _smallest_of_unit(matrix: Matrix) -> float:
    """λmin of M + D, for entries of modulus at most 2 and |D_ij| ≤ 2·ETA, rounded down."""
    p = matrix.shape[0]
    if p == 1:
        return float(matrix.real[0, 0])  # scaled up or down into [½, 1): exact
    try:
        spectrum = np.linalg.eigvalsh(matrix)
        spread = float(spectrum[-1] - spectrum[0])
        margin = 2 * p * U64 * max(spread, abs(float(spectrum[0])), 2.0**-500)
        for _ in range(12):
            shift = float(spectrum[0]) - margin
            try:
                factor = np.linalg.cholesky(matrix - shift * np.eye(p))
            except np.linalg.LinAlgError:
                margin *= 8.0
                continue
            lost = float(up(defect_up(matrix, shift, factor) + 4.0 * p * ETA, 1))
            return float(np.nextafter(shift - lost, -np.inf)) if math.isfinite(lost) else -math.inf
    except np.linalg.LinAlgError:  # the eigenvalues did not converge
        pass
    return -math.inf
