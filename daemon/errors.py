"""Takes the error out of a task group's group of errors, so that a caller sees the one that it knows."""


def only_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error in a group of groups."""
    first = group.exceptions[0]
    return only_error(first) if isinstance(first, BaseExceptionGroup) else first
