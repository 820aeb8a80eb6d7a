"""Agents: one folder per family."""
