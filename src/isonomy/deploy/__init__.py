"""A model outside of its run: a folder with weights, a card that says what they are, and a seal.

Loading one needs neither the run nor its data, and runs no code that came with the folder.
"""
