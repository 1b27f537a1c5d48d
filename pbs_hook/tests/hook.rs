//! `gpuos_hook.py` as PBS runs it, by a stand-in for PBS's module, with the real command and the real library; and that library by ctypes.
//!
//! This proves the hook against the stand-in. What the stand-in has to do with PBS is what `recorded` replays: events of a real one.

mod confine;
mod ends;
mod events;
mod library;
mod oldest;
mod patience;
mod periodic;
mod recorded;
mod support;
mod swapped;
