"""What the screens share: the only package besides app.py and pages that draws."""
