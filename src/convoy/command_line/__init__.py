"""What commands share: flags, parsers, and how they speak to a person."""
