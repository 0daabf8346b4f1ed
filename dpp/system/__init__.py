"""Errors, paths, atomic files, hashes, locks, worker processes, profiles and compilers."""
