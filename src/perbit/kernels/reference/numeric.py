"""Reductions, quantizers, selection, packing and checksums in numpy (see kernels/README.md)."""
