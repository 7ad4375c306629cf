"""A real federation: what the server and every site keep, say and refuse, whoever carries their messages."""
