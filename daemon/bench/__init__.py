"""`retinad bench`: times the model alone, and the way from a camera to a subscriber."""
