"""Where models come from: embedded weights, folders and hub ids; loading; tokens."""
