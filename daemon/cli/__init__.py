"""The command line: `app` defines it, each command is a module of its own, and `common` is what they share."""
