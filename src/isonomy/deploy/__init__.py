"""Trained models in use: predict with a run's model, or export it and predict anywhere.

An exported model is a folder with weights, a card that describes them, and a seal. Loading it needs
neither the run nor its data, and runs no code from the folder.
"""
