"""What holds for every test: no model hub is asked for anything."""

import os

# Read by the libraries when they are imported, so it must stand before any test module.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
