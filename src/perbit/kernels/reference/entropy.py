"""Histogram, rANS and Huffman in numpy (see kernels/README.md)."""
