"""Train one small GPT on several devices, and see what every device does."""
