//! The C functions, by theme. [`cuda`] keeps panics from C and lists what it writes, for
//! `cuGetProcAddress`.

mod call;
mod checkpoint;
mod context;
mod copy;
mod device;
mod event;
mod graph;
mod graph_nodes;
mod launch;
mod library;
mod linker;
mod memory;
mod module;
mod newer;
mod older;
mod pointers;
mod pool;
mod streams;
mod unsupported;
mod virtual_memory;

pub(crate) use call::{Address, call, enqueue, finish, per_thread, stream_of};
pub(crate) use linker::Link;
pub(crate) use virtual_memory::Handles;

/// Writes C functions: each body gives an `Answer`, and panics stay inside. A second name, after a slash, is
/// the same function for the thread's own default stream.
macro_rules! cuda {
    ($( fn $name:ident $arguments:tt $(/ $own:ident)? $body:block )*) => {
        $(
            $crate::engine::exports::function! { $name $arguments $body }
            $( $crate::engine::exports::function! { $own, $name $arguments } )?
        )*

        /// The functions of this file.
        pub(super) static EXPORTS: &[(&str, $crate::engine::exports::Address)] = &[ $(
            (stringify!($name), $crate::engine::exports::Address($name as *const ())),
            $( (stringify!($own), $crate::engine::exports::Address($own as *const ())), )?
        )* ];
    };
}
pub(crate) use cuda;

/// Writes one of them.
macro_rules! function {
    ($name:ident ($($argument:ident: $kind:ty),* $(,)?) $body:block) => {
        #[allow(non_snake_case, reason = "C's name")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($argument: $kind),*) -> $crate::abi::Code {
            $crate::engine::exports::call(stringify!($name), move || $body)
        }
    };
    ($own:ident, $name:ident ($($argument:ident: $kind:ty),* $(,)?)) => {
        #[allow(non_snake_case, reason = "C's name")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $own($($argument: $kind),*) -> $crate::abi::Code {
            $crate::engine::exports::per_thread(|| $name($($argument),*))
        }
    };
}
pub(crate) use function;

/// Names and addresses of all exports.
pub(crate) fn all() -> impl Iterator<Item = (&'static str, usize)> {
    [
        checkpoint::EXPORTS,
        context::EXPORTS,
        copy::EXPORTS,
        device::EXPORTS,
        event::EXPORTS,
        graph::EXPORTS,
        graph_nodes::EXPORTS,
        launch::EXPORTS,
        library::EXPORTS,
        linker::EXPORTS,
        memory::EXPORTS,
        module::EXPORTS,
        older::EXPORTS,
        pointers::EXPORTS,
        pool::EXPORTS,
        streams::EXPORTS,
        unsupported::EXPORTS,
        virtual_memory::EXPORTS,
    ]
    .into_iter()
    .flatten()
    .map(|(name, address)| (*name, address.0 as usize))
}
