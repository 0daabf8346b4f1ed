"""Beyond the paper: what no table of it uses, and nothing of its core imports."""
