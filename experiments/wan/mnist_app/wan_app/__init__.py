"""A Flower app whose model is large and whose links are thin."""
