//! libscr.so: the names of SCR (Scalable Checkpoint/Restart) over gpuos's checkpoints, so that a program written for SCR has them after it is linked anew.
//! `include/scr.h` has the functions, and what each of them does here.
//!
//! - `settings`: what `SCR_Config` is told; `told`: what a run is told by that, by variables and by the user's file;
//! - `place`: where a file of a dataset lies; `shared`: files that ranks write together;
//! - `mpi`: the one agreement among ranks that the others are built on, by the program's own MPI;
//! - `session`: from `SCR_Init` to `SCR_Finalize`;
//! - `capi`: the functions that C sees.
#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "pointers of C")]
mod capi;
#[allow(unsafe_code, reason = "functions of the program's MPI, found by name")]
mod mpi;
mod place;
mod session;
mod settings;
mod shared;
mod told;
