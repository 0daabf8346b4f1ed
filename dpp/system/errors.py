"""The one exception for mistakes that the user can fix."""


class UserError(Exception):
    """Says what was wrong, where, and what to do. The command line prints it and exits with 2."""


def one_line(error: Exception) -> str:
    """The message of a library's error, without its line breaks."""
    return " ".join(str(error).split())


class ReportedError(UserError):
    """A mistake that another process of the same training reports: this one says nothing."""
