"""Privacy: what protects clients beyond the limits that they agreed to."""
