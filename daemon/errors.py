"""Unwraps the exception groups that task groups raise, so that callers can handle the error inside."""


def only_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error in a group, which may be nested."""
    first = group.exceptions[0]
    return only_error(first) if isinstance(first, BaseExceptionGroup) else first
