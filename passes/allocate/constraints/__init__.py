"""What a file may cost, a kind of budget each: time, memory, loss; the size is the search of plans itself."""
