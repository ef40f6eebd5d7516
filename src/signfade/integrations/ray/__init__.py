"""Runs and shards on a Ray cluster."""
