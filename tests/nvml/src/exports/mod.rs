//! The C functions, by theme, and what all of them go through: [`call`] keeps panics from C and
//! [`gpu`] finds the GPU that a handle means, or says why it does not answer.

mod call;
mod handle;
mod pointer;
mod session;
mod text;

mod clocks;
mod device;
mod ecc;
mod events;
mod fabric;
mod fields;
mod gpm;
mod identity;
mod memory;
mod mig_instances;
mod mig_profiles;
mod modes;
mod nvlink;
mod pcie;
mod power;
mod processes;
mod repairs;
mod system;
mod topology;
mod unsupported;

pub(crate) use call::{call, unsupported};
pub(crate) use handle::{Target, device_handle};
pub(crate) use pointer::{Block, Chars, Name, Out, Versioned};
pub(crate) use session::{change, gpu, node, part, root_only};
pub(crate) use text::bus_id;

/// Writes C functions: each body gives an `Answer`, and panics stay inside.
macro_rules! nvml {
    ($( $(#[$meta:meta])* fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $body:block )*) => { $(
        $(#[$meta])*
        #[allow(non_snake_case, reason = "C's name")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($argument: $kind),*) -> nvml_wrapper_sys::bindings::nvmlReturn_t {
            $crate::exports::call(move || $body)
        }
    )* };
}
pub(crate) use nvml;
