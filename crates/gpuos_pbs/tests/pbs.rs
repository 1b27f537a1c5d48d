//! Tests of `gpuos_pbs` by its public face.

#[path = "pbs/hook.rs"]
mod hook;
#[path = "pbs/hook_advise.rs"]
mod hook_advise;
#[path = "pbs/hook_checkpoints.rs"]
mod hook_checkpoints;
#[path = "pbs/hook_confine.rs"]
mod hook_confine;
#[path = "pbs/hook_end.rs"]
mod hook_end;
#[path = "pbs/hook_hosts.rs"]
mod hook_hosts;
#[path = "pbs/hook_launch.rs"]
mod hook_launch;
#[path = "pbs/hook_memory.rs"]
mod hook_memory;
#[path = "pbs/hook_mig.rs"]
mod hook_mig;
#[path = "pbs/hook_mom.rs"]
mod hook_mom;
#[path = "pbs/hook_mutated.rs"]
mod hook_mutated;
#[path = "pbs/hook_qmgr.rs"]
mod hook_qmgr;
#[path = "pbs/hook_room.rs"]
mod hook_room;
#[path = "pbs/hook_shares.rs"]
mod hook_shares;
#[path = "pbs/hook_start.rs"]
mod hook_start;
#[path = "pbs/hook_syntax.rs"]
mod hook_syntax;
#[path = "pbs/hook_taken.rs"]
mod hook_taken;
#[path = "pbs/hook_talks.rs"]
mod hook_talks;
#[path = "pbs/hook_wishes.rs"]
mod hook_wishes;
#[path = "pbs/pass.rs"]
mod pass;
#[path = "pbs/state.rs"]
mod state;
#[path = "pbs/what_if.rs"]
mod what_if;
#[path = "pbs/world.rs"]
mod world;
