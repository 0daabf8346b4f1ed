"""The one exception for mistakes that the user can fix."""


class UserError(Exception):
    """Says what was wrong, where, and what to do. The command line prints it and exits with 2."""
