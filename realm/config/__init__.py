"""What a run is made of: keys, TOML, the numbers that `auto` decides, and whether they fit together."""
