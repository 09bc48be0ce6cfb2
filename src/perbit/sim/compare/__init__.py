"""Comparisons: several methods and seeds on one task, in parallel processes, and what comes of it."""
