"""What everything stands on: errors, paths, atomic files, worker processes, compilers."""
