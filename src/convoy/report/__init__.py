"""What programs were compiled to and how they ran: recorded, and shown as a page."""
