"""The command line: `app` defines it, each command has its own module, and `common` holds what commands share."""
