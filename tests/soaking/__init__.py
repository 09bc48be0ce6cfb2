"""A federation of real processes that are killed all the time; tests/soak.py is the command."""
