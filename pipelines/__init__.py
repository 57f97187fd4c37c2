"""How rows reach replicas: sources, work units, the commit log and the Ray Data stream."""
