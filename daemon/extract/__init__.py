"""`retinad extract`: writes a recording's features to files, and resumes after a stop or a crash."""
