"""Who a dataset is, and which bytes: hashes, ids, references, signatures."""
