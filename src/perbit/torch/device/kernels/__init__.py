"""Triton kernels: one idea a file. kernels/README.md is the contract; tests compare every bit with the kernels of the host."""
