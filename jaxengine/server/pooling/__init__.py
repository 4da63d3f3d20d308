"""What the endpoints share that pool prompts: their fields, and the way from a body to requests and back."""
