//! The command as people and scripts meet it: text, JSON and exit codes, over recorded
//! answers of real slurmctld daemons.

mod ckpt;
mod ckpt_again;
mod ckpt_bed;
mod ckpt_drills;
mod ckpt_far;
mod defrag;
mod doctor;
mod doctor_bed;
mod doctor_faults;
mod doctor_planted;
mod doctor_planted_lines;
mod doctor_planted_more;
mod doctor_planted_tables;
mod mem;
mod mig;
mod mix;
mod pbs;
mod pbs_commands;
mod pbs_planner;
mod plan;
#[path = "../../../../tests/src/port.rs"]
mod port;
mod remote;
mod replay;
mod rules;
mod schemas;
mod sim;
mod sim_gangs;
mod sim_mig;
mod sim_replay;
mod site;
mod slices;
mod switchable;
mod top;
mod topo;
mod units;
mod usage;
mod why;
mod wlm;
mod wlm_saves;
mod wlm_starts;
mod wlm_store;
mod worth;
