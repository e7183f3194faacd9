"""Data from elsewhere into event tables: fetch, unpack, read, reshape, merge. Source: seed 002 ("Data Ingestion")."""
