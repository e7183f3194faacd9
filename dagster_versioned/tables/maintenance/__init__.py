"""What keeps a table sound and small: verification, collections, and what protects versions from them."""
