"""The page for operators: views that this process renders, which work without a script.

A view is a function of what was read; templates hold no rule. Everything foreign is escaped by the templates.
"""
