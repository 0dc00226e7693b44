"""What a broker sends to others: follower fetches, the controller's requests, connections that tell of deaths."""
