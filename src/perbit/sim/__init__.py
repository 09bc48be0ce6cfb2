"""The simulation: data sets, models and partitions to train real networks with real frames. A leaf: torch and scikit-learn load on first use."""
