"""Simulations: algorithms run in one process, with real frames between server and workers."""
