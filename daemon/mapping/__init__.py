"""`retinad trajectory` and `retinad cloud`: paths and clouds of points from poses and depths. Needs numpy only."""
