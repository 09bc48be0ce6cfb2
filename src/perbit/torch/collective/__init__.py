"""Averages over all ranks of a torch.distributed group, by coded frames: what DDP and FSDP2 stand on."""
