"""Reaches Redis or Valkey: clients, connections, scripts, keys, Sentinel, and the embedded server.

May import: errors, jsonio, data_files.
"""
