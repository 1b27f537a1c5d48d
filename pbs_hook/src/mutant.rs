//! An error that tests plant, to see that it is caught: in builds with debug assertions, by `GPUOS_PBS_MUTANT`. Else there is none.

/// Panics on an event that contains the text of the variable.
pub(crate) fn panic_if_planted(event: &str) {
    if !cfg!(debug_assertions) {
        return;
    }
    let planted = std::env::var("GPUOS_PBS_MUTANT");
    if let Ok(text) = planted.as_deref()
        && event.contains(text)
    {
        panic!("planted by a test: {text}");
    }
}
