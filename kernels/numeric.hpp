// The numeric kernels, written against PERBIT_ARCH.
