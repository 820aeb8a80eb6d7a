"""Proxies: learned environments and rewards that agents train on. `contract` says what a kind of proxy must have."""
