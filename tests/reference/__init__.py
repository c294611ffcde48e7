"""References for the engine: slow, plain computations of what a run finds, from a program alone.

None of them shares code, data structures or algorithms with `mpisim.engine`. Read them in this
order:

- `costs`: program and network → the duration of every row, and which communications are flows;
- `dependencies`: the graph whose nodes are instants and whose edges say "not before, plus so much";
- `max_min`: flows that share links → their rates, by water filling in exact integers;
- `simulation`: program and network → `Timeline`. Times are longest paths of the graph; where
  communications share links, an event loop gives the ends of flows;
- `critical_path`, `digest`: both from a timeline, in a page each;
- `rank_by_rank`: a second way to find the times of runs without contention, for large programs;
- `circuits`: communications over optical circuits, event by event;
- `comparison`: assertions that a run is what a reference says, or what another run found.
"""
