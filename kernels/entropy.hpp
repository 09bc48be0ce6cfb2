// The entropy kernels, written against PERBIT_ARCH.
