"""Where frames come from: every source is read by a capture process of its own.

Nothing is imported here, so that a capture process starts in a fraction of a second. The event loop's side is `capture`
and `camera`; the capture process is `child`; `messages` and `slots` are what they share.
"""
