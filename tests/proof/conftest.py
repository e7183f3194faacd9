"""Fixtures of proofs."""

from support.git_identity import git_identity

__all__ = ["git_identity"]
