"""The systems that the paper compares with, each in one file, on the same ground as the rest."""
