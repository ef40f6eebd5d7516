"""Digits at one bit a weight: a Flower app to copy."""
