"""What becomes of an event, as values and pure functions. Knows no vendor; what it needs it declares in ``ports``.

May import: errors, jsonio.
"""
