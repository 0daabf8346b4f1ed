"""The commands of `dpp`; each module adds its own to the parser."""
