//! The Slurm releases that the tests run on.

use gpuos_lab::Suite;

/// The releases: the native one, and those of two Debian suites. `$GPUOS_TEST_SUITES` names
/// others, for example `native` or `native,/opt/slurm-23.11`; `none` runs nothing that needs a Slurm.
pub fn suites() -> Vec<Suite> {
    let names = std::env::var("GPUOS_TEST_SUITES").unwrap_or_default();
    let names = match names.trim() {
        "" => "native,trixie,sid",
        names => names,
    };
    if names.trim() == "none" {
        return Vec::new();
    }
    names
        .split(',')
        .map(|name| name.trim().parse().expect("GPUOS_TEST_SUITES"))
        .collect()
}

/// Says on standard error what is not tested, and why.
pub fn skip(what: &str, why: &str) {
    eprintln!("SKIPPED {what}: {why}");
}

/// Whether a long test of what no release of Slurm does otherwise leaves this one to `make soak`, which says so: the native one
/// alone has it each time.
pub fn left_to_soak(what: &str, suite: &Suite) -> bool {
    let left = *suite != Suite::Native
        && std::env::var_os("GPUOS_SOAK").is_none()
        && std::env::var_os("GPUOS_TEST_SUITES").is_none();
    if left {
        skip(
            &format!("{what} on {suite}"),
            "the native release has it; make soak does all",
        );
    }
    left
}

/// How many runs of a measurement `variable` asks for; `None`, and a word on standard error, without it.
pub fn measured_runs(variable: &str, script: &str) -> Option<usize> {
    let runs = std::env::var(variable).ok().and_then(|n| n.parse().ok());
    if runs.is_none() {
        eprintln!("skipped: a measurement of minutes, run by {script}");
    }
    runs
}

/// One test per release: `per_suite!(pairs);` makes `native::pairs`, `trixie::pairs` and
/// `sid::pairs`, each of which calls `pairs(&Suite)`.
#[macro_export]
macro_rules! per_suite {
    ($($(#[$meta:meta])* $name:ident),+ $(,)?) => {
        $crate::per_suite!(@module native, "native", $($name),+);
        $crate::per_suite!(@module trixie, "trixie", $($name),+);
        $crate::per_suite!(@module sid, "sid", $($name),+);
        /// Releases that `$GPUOS_TEST_SUITES` names beside the usual ones.
        mod further {
            $(
                #[test]
                fn $name() {
                    for suite in $crate::suites() {
                        if !["native", "trixie", "sid"].contains(&suite.to_string().as_str()) {
                            super::$name(&suite);
                        }
                    }
                }
            )+
        }
    };
    (@module $module:ident, $suite:literal, $($name:ident),+) => {
        mod $module {
            $(
                #[test]
                fn $name() {
                    match $crate::suites().iter().find(|s| s.to_string() == $suite) {
                        Some(suite) => {
                            let _cost = $crate::costs::of(concat!(module_path!(), "::", stringify!($name)));
                            super::$name(suite)
                        }
                        None => $crate::skip($suite, "GPUOS_TEST_SUITES does not name it"),
                    }
                }
            )+
        }
    };
}
