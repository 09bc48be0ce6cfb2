"""Adapters for the engines people train with; each needs its own extra."""
