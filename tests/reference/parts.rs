//! Parts of a page of docs that are made, between what people write there:
//! `<!-- made: NAME -->`, the part, `<!-- end -->`. Tests of several crates include this file.

use std::sync::{Mutex, PoisonError};

#[path = "page.rs"]
pub mod page;

static ALONE: Mutex<()> = Mutex::new(());

const END: &str = "<!-- end -->";

/// Holds parts of the page `docs/PATH`, by their names, against what they are made of. With `$GPUOS_WRITE` they are
/// written instead; `command` is what does that.
pub fn hold(path: &str, parts: &[(String, String)], command: &str) {
    // Other tests of this program may be at other parts of the same page.
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut made = std::fs::read_to_string(page::docs(path))
        .unwrap_or_else(|e| page::fail(&format!("docs/{path}: {e}")));
    for (name, text) in parts {
        made = with(&made, name, text).unwrap_or_else(|| {
            page::fail(&format!(
                "docs/{path} has no place `<!-- made: {name} -->` … `{END}`: write one there"
            ))
        });
    }
    page::hold(path, &made, command);
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
