"""From Catalyst plans to the algebra and back."""
