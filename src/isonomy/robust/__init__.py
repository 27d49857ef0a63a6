"""Attacks by malicious clients, defences against them, and the screening of replies."""
