"""Deformable prototypes, the paper's network and its losses (sections 3 and 4)."""
