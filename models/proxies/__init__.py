"""Proxies: learned environments and rewards that agents train on. `contract` is the interface of a kind of proxy."""
