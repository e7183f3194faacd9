"""Tables of which only what is stale is computed: features, their graph, versions of samples, increments."""
