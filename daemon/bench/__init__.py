"""`retinad bench`: measures the model alone, and the path from a camera to a subscriber."""
