"""Components of `dg`: a project and its sensors in YAML."""
