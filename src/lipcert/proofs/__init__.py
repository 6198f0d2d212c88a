"""Proofs about what is stored: module → operation with a verified constant, its rounding, lower bounds, audit."""
