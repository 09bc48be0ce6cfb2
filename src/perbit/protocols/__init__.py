"""Protocols: a way up, a way down, and what goes down; presets by the names of their papers."""
