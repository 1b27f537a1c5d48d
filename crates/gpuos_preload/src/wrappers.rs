//! The wrappers that are made of the table. Each hands its arguments on as they came: numbers and pointers, which the C ABIs of both
//! architectures pass as words, in registers and on the stack. The few functions that
//! have other arguments, floats or large structures, are passed on: a test of `table` names them.

use crate::memory;
use crate::mutant::{self, Mutant};
use crate::{driver, gate, heat, process, record, staging, watch, window};

/// The type of an argument.
macro_rules! word {
    ($name:ident) => {
        u64
    };
}

/// The driver's function, called with the arguments.
macro_rules! real {
    ($index:literal $($a:ident)*) => {{
        let address = driver::real($index);
        if address == 0 {
            return driver::code::NOT_FOUND;
        }
        // SAFETY: the driver's function of this row, whose arguments are so many words.
        unsafe { std::mem::transmute::<usize, unsafe extern "C" fn($(word!($a)),*) -> u32>(address) }
    }};
}

/// Whether this call goes past the gate, in tests that plant errors.
#[inline]
fn enter(index: usize, launch: bool) -> gate::Inside {
    let planted = || {
        let name = crate::table::ROWS[index].base;
        (mutant::is(Mutant::LaunchGate) && launch)
            || (mutant::is(Mutant::GraphGate) && name == "cuGraphLaunch")
            || (mutant::is(Mutant::CopyGate)
                && (name.starts_with("cuMemcpy") || name.starts_with("cuMemset")))
    };
    if cfg!(debug_assertions) && planted() {
        return gate::around();
    }
    gate::enter()
}

/// A copy or a fill touches what these words name.
#[cold]
fn named(index: usize, words: &[u64]) {
    if watch::is_cold() {
        heat::words(words);
    }
    record::call(crate::table::ROWS[index].base, words);
}

/// A kernel touches what its arguments lead to. `told`: for the policy that is noted already.
#[cold]
fn launched(function: u64, places: u64, extra: u64, told: bool) {
    if !told && watch::is_cold() {
        heat::launch(function, places, extra);
    }
    record::launch(function, places, extra);
}

/// The same of a graph.
#[cold]
fn graph_launched(exec: u64) {
    if watch::is_cold() {
        heat::graph(exec);
    }
    record::graph(exec);
}

macro_rules! gate {
    ($index:literal $name:ident $($a:ident)*) => {
        #[allow(non_snake_case, clippy::too_many_arguments, reason = "C's function")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub(crate) extern "C" fn $name($($a: u64),*) -> u32 {
            let real = real!($index $($a)*);
            let _inside = enter($index, false);
            if watch::is_on() {
                named($index, &[$($a),*]);
            }
            // SAFETY: the caller's arguments, unchanged.
            unsafe { real($($a),*) }
        }
    };
}

/// `-` where a function has no such argument.
macro_rules! place {
    (-) => {
        0
    };
    ($name:ident) => {
        $name
    };
}

macro_rules! launch {
    ($index:literal $name:ident [$function:tt $places:tt $extra:tt] $($a:ident)*) => {
        #[allow(non_snake_case, clippy::too_many_arguments, reason = "C's function")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub(crate) extern "C" fn $name($($a: u64),*) -> u32 {
            let real = real!($index $($a)*);
            window::before_launch();
            let told = watch::is_cold()
                && staging::before(place!($function), place!($places), place!($extra));
            let _inside = enter($index, true);
            if watch::is_on() {
                launched(place!($function), place!($places), place!($extra), told);
            }
            // SAFETY: the caller's arguments, unchanged.
            unsafe { real($($a),*) }
        }
    };
}

macro_rules! graph {
    ($index:literal $name:ident $exec:ident $stream:ident) => {
        #[allow(non_snake_case, reason = "C's function")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub(crate) extern "C" fn $name($exec: u64, $stream: u64) -> u32 {
            let real = real!($index $exec $stream);
            window::before_launch();
            let _inside = enter($index, false);
            if watch::is_on() {
                graph_launched($exec);
            }
            // SAFETY: the caller's arguments, unchanged.
            unsafe { real($exec, $stream) }
        }
    };
}

macro_rules! pin {
    ($index:literal $name:ident $($a:ident)*) => {
        #[allow(non_snake_case, clippy::too_many_arguments, reason = "C's function")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub(crate) extern "C" fn $name($($a: u64),*) -> u32 {
            let real = real!($index $($a)*);
            // What is being moved, or parked, is there when the gate was passed, and stays.
            let _inside = memory::knows(&[$($a),*]).then(gate::enter);
            if !gate::is_off() {
                memory::lock().pin(&[$($a),*]);
            }
            // SAFETY: the caller's arguments, unchanged.
            unsafe { real($($a),*) }
        }
    };
}

macro_rules! stop {
    ($index:literal $name:ident $($a:ident)*) => {
        #[allow(non_snake_case, clippy::too_many_arguments, reason = "C's function")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub(crate) extern "C" fn $name($($a: u64),*) -> u32 {
            let real = real!($index $($a)*);
            // A child of `fork` takes no lock, not even that of standard error.
            if !gate::is_off() {
                process::pin(format_args!(
                    "the program calls {}, and work that comes of it cannot be waited for",
                    stringify!($name)
                ));
            }
            // What is being moved is there when the gate was passed.
            drop(gate::enter());
            // SAFETY: the caller's arguments, unchanged.
            unsafe { real($($a),*) }
        }
    };
}

macro_rules! refuse {
    ($index:literal $name:ident $($a:ident)*) => {
        #[allow(non_snake_case, clippy::too_many_arguments, reason = "C's function")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub(crate) extern "C" fn $name($($a: u64),*) -> u32 {
            let real = real!($index $($a)*);
            let _inside = memory::knows(&[$($a),*]).then(gate::enter);
            if !gate::is_off() && memory::lock().pin(&[$($a),*]) {
                process::say(format_args!(
                    "{}: memory in tiers has no such handle; ask cuMemCreate for one by its handle type, or run without {}",
                    stringify!($name),
                    process::GRANT
                ));
                return driver::code::NOT_SUPPORTED;
            }
            // SAFETY: the caller's arguments, unchanged.
            unsafe { real($($a),*) }
        }
    };
}

include!(concat!(env!("OUT_DIR"), "/wrappers.rs"));
