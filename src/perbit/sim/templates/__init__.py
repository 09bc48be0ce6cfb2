"""What `perbit init` writes: for each kind of task a comparison and a small module, to be changed."""
