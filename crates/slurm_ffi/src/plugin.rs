//! What every Slurm plugin exports besides its entries: name, type and release.

use crate::release::{self, Release};

/// Stock plugins that every installation has, on login nodes too.
const SIBLINGS: [&str; 3] = ["gres_gpu.so", "select_cons_tres.so", "cred_munge.so"];

/// The release of the Slurm that is loading the plugin which holds the address `own`.
pub fn release_beside(own: usize) -> Option<Release> {
    SIBLINGS
        .iter()
        .filter_map(|file| release::sibling(own, file))
        .find_map(|path| release::version_in_file(&path))
}

/// Puts the release of gpuos into the plugin's file, where `gpuos doctor` finds it without loading the plugin: plugins
/// of two builds do not belong together. What is called while the plugin loads has to name `GPUOS_MARK`, or the linker
/// leaves it out.
#[macro_export]
macro_rules! mark {
    () => {
        #[used]
        static GPUOS_MARK: &str = concat!("@(#)gpuos ", env!("CARGO_PKG_VERSION"), "\0");
    };
}

/// Exports `plugin_name`, `plugin_type` and `plugin_version`, the last filled in by a constructor
/// before Slurm looks at it. A release that is not found stays 0, which Slurm refuses with a log line.
///
/// Takes the byte strings with their NUL, and the prefix of log lines.
#[macro_export]
macro_rules! plugin {
    ($name:literal, $kind:literal, $prefix:literal) => {
        #[doc = "Name of the plugin, as Slurm shows it."]
        #[unsafe(no_mangle)]
        #[allow(non_upper_case_globals, reason = "Slurm's name")]
        pub static plugin_name: [u8; $name.len()] = *$name;

        #[doc = "Kind of plugin."]
        #[unsafe(no_mangle)]
        #[allow(non_upper_case_globals, reason = "Slurm's name")]
        pub static plugin_type: [u8; $kind.len()] = *$kind;

        #[doc = "The release of the Slurm that loads the plugin."]
        #[unsafe(no_mangle)]
        #[allow(non_upper_case_globals, reason = "Slurm's name")]
        pub static plugin_version: ::std::sync::atomic::AtomicU32 =
            ::std::sync::atomic::AtomicU32::new(0);

        $crate::mark!();

        extern "C" fn find_release() {
            $crate::guard::guard(
                "constructor",
                || (),
                || {
                    $crate::log::set_prefix($prefix);
                    ::std::hint::black_box(GPUOS_MARK);
                    if let Some(release) =
                        $crate::plugin::release_beside(&raw const plugin_version as usize)
                    {
                        plugin_version.store(release.0, ::std::sync::atomic::Ordering::Relaxed);
                    }
                },
            );
        }

        // SAFETY: functions in .init_array are called once by the dynamic loader, with arguments that
        // a function without parameters may ignore.
        #[used]
        #[unsafe(link_section = ".init_array")]
        static CONSTRUCTOR: extern "C" fn() = find_release;
    };
}
