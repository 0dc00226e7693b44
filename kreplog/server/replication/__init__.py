"""What a broker sends to others: follower fetches, control requests, connections that detect failures."""
