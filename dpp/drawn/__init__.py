"""The engine that draws PoseBirds and PoseDogs, articulated animals with known parts."""
