"""The settings of each kind of protected resource, and the adapter that each of them asks for."""
