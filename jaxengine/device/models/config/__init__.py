"""From a checkpoint's config.json to a family's configuration."""
