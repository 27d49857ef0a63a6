"""Several processes, on one machine or many, compute one run together, by `torch.distributed`."""
