"""`retinad bench`: measures the model alone, then the whole path from cameras to a subscriber."""
