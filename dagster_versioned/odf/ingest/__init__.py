"""Files and URLs into histories of events, as a manifest says."""
