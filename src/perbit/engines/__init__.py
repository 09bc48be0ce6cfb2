"""perbit inside the engines people train with. Each engine needs its own extra, e.g. `pip install perbit[flower]`."""
