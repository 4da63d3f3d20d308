"""What several endpoints share: fields, the way from a body to requests, log probabilities, usage."""
