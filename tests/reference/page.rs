//! A page of docs, which is made of tables in the code or of figures. Tests of several crates include this file.

use std::path::{Path, PathBuf};

/// A file of docs, wherever in the repository the crate stands.
pub fn docs(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .map(|folder| folder.join("docs"))
        .find(|folder| folder.is_dir())
        .expect("docs")
        .join(path)
}

/// Holds the page `docs/PATH` against what it is made of. With `$GPUOS_WRITE` it is written instead; `command` is what
/// does that.
pub fn hold(path: &str, made: &str, command: &str) {
    let file = docs(path);
    if std::env::var_os("GPUOS_WRITE").is_some() {
        std::fs::write(&file, made).expect("the page is written");
        return;
    }
    let known = std::fs::read_to_string(&file).unwrap_or_default();
    let same = known.lines().zip(made.lines()).take_while(|(a, b)| a == b);
    let at = same.count();
    let (old, new) = (known.lines().nth(at), made.lines().nth(at));
    if known != made {
        fail(&format!(
            "docs/{path} is not what the code and its figures say: run `{command}`, or this test with GPUOS_WRITE=1. Line {} \
             is {old:?} there, and should be {new:?}",
            at + 1
        ));
    }
}

/// Fails with a sentence, also in a plugin, whose panics are silent.
pub fn fail(why: &str) -> ! {
    drop(std::panic::take_hook());
    panic!("{why}");
}
