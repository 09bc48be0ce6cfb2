"""Federated and distributed deep learning that pays by the bit."""
