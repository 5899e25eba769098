"""What commands share: flags, and how they speak to a person."""
