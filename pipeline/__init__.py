"""One frame in, one record out: sources, queue, worker, model and publisher.

Nothing is imported here, so that a capture process, which needs neither torch nor ZeroMQ, starts in a fraction of a
second.
"""
