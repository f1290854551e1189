"""What subscribers use: typed records, and the layout of the messages. Needs neither torch nor OpenCV."""
