"""Data sets that lie under the data root as .npz files: `perbit data NAME` gets them, `perbit.sim.data.load(NAME)` reads them."""
