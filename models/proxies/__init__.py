"""Learned stand-ins for environments: a folder each, and `files`, which keeps them on disk."""
