"""Experiments made of many runs: the studies behind the numbers in the docs."""
