"""Frames: arrays and models as self-describing bytes (docs/format.md is the norm)."""
