//! Parts of a page of docs that are made, between what people write there:
//! `<!-- made: NAME -->`, the part, `<!-- end -->`. Tests of several crates include this file.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

static ALONE: Mutex<()> = Mutex::new(());

const END: &str = "<!-- end -->";

/// A file of docs, wherever in the repository the crate stands.
pub fn docs(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .map(|folder| folder.join("docs"))
        .find(|folder| folder.is_dir())
        .expect("docs")
        .join(path)
}

/// Holds parts of the page `docs/PATH`, by their names, against what they are made of. With `$GPUOS_WRITE` they are
/// written instead; `command` is what does that.
pub fn hold(path: &str, parts: &[(String, String)], command: &str) {
    let file = docs(path);
    // Other tests of this program may be at other parts of the same page.
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let page = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("docs/{path}: {e}"));
    let mut made = page.clone();
    for (name, text) in parts {
        made = with(&made, name, text).unwrap_or_else(|| {
            fail(&format!(
                "docs/{path} has no place `<!-- made: {name} -->` … `{END}`: write one there"
            ))
        });
    }
    if std::env::var_os("GPUOS_WRITE").is_some() {
        std::fs::write(&file, made).expect("the page is written");
        return;
    }
    let same = page.lines().zip(made.lines()).take_while(|(a, b)| a == b);
    let at = same.count();
    let (old, new) = (page.lines().nth(at), made.lines().nth(at));
    if page != made {
        fail(&format!(
            "docs/{path} is not what its figures and tables say: run `{command}`, or this test with GPUOS_WRITE=1. Line {} \
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

/// The page with that part.
fn with(page: &str, name: &str, text: &str) -> Option<String> {
    let mark = format!("<!-- made: {name} -->");
    let (before, rest) = page.split_once(&mark)?;
    let (old, after) = rest.split_once(END)?;
    // An end that is another part's.
    let own = !old.contains("<!-- made: ");
    own.then(|| format!("{before}{mark}{text}{END}{after}"))
}
