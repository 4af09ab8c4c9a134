"""Algorithms as libraries: losses and updates on torch tensors, without networks, environments or processes."""
