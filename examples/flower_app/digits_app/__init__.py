"""Digits at one bit per weight: a Flower app to copy."""
