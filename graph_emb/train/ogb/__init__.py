"""OGB's data sets: recipes, a record of every seed, and the report that a leaderboard asks for."""
