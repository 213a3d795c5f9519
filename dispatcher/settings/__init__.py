"""What the operator decides: the environment (``Settings``) and the limits file (``Policy``).

May import: core, server, errors, data_files.
"""
