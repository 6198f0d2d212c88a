"""Attacks: evidence from above. They share no arithmetic with the proofs."""
