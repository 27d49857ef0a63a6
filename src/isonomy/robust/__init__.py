"""Attacks on the exchange, combiners that withstand them, and the screening of replies."""
