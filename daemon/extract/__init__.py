"""`retinad extract`: a recording's features as files, resumable."""
