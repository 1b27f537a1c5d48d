//! A page of docs/reference, which is made of a table in the code. Tests of several crates include this file.

use std::path::Path;

/// Holds the page `docs/reference/NAME` against what the table says. With `$GPUOS_WRITE` (`make reference`) it is
/// written instead.
pub fn hold(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .map(|folder| folder.join("docs/reference"))
        .find(|folder| folder.is_dir())
        .expect("docs/reference")
        .join(name);
    if std::env::var_os("GPUOS_WRITE").is_some() {
        std::fs::write(&path, text).expect("the page is written");
        return;
    }
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    let same = known.lines().zip(text.lines()).take_while(|(a, b)| a == b);
    let at = same.count();
    let (old, new) = (known.lines().nth(at), text.lines().nth(at));
    assert!(
        known == text,
        "docs/reference/{name} is not what the code says: run `make reference`, or this test with GPUOS_WRITE=1. \
         Line {} is {old:?} there, {new:?} by the code",
        at + 1
    );
}
