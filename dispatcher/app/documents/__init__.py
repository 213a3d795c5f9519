"""What is found as JSON has it: the same objects for the commands' ``--json`` and for HTTP."""
