"""Secure aggregation: the server learns the sum of replies, and no single reply.

- `quantise`: replies as vectors of integers whose sum cannot overflow;
- `primitives`: keys, masks and shares, from the libraries `cryptography` and `pycryptodome`;
- `member`: what a client does; `recovery`: how the server removes masks from a sum;
- `simulated`: the same quantisation in a simulation;
- `threshold`: how many clients a sum is of; `check`: which algorithms and configs can have it.
"""
