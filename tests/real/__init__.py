"""Real servers, started as processes of their own."""
