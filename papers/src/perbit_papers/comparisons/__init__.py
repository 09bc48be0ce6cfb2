"""The comparisons of the papers, NAME.toml each: `perbit compare NAME`."""
