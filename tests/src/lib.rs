//! Tests of the whole: real Slurm daemons in a lab, and the rules of the house.
