"""Evaluation of embeddings: node classification, accuracy on a split, link prediction and ranks."""
