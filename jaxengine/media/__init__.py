"""Pictures, sound and video as they come with requests: fetched within limits, and decoded to arrays."""
