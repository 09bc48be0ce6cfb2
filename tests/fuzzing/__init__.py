"""Fuzzing of every way into a frame; tests/fuzz.py is the command."""
