"""Which division of a model over devices would be fastest."""
