//! Modules form a DAG inside each crate, and no type's methods stand in more than three files.

use super::order::{File, circles, scattered};
use super::*;

/// The most files in which methods of a type stand.
const MOST_FILES: usize = 3;

/// The sources of each crate of this workspace.
fn crates() -> Vec<(String, Vec<File>)> {
    let root = root().canonicalize().expect("is there");
    let own = packages().into_iter().filter(|package| package.own);
    let all = files(&[".rs"]);
    let sources = |package: Package| {
        let folder = package.manifest.parent().expect("a folder").join("src");
        let folder = folder.strip_prefix(&root).expect("in this repository");
        let folder = format!("{}/", folder.display());
        let below = all.iter().filter_map(|path| {
            let below = path.strip_prefix(&folder)?;
            Some((below.to_string(), read(path)))
        });
        (package.name, below.collect())
    };
    own.map(sources).collect()
}

#[test]
fn modules_name_each_other_in_one_direction() {
    for (name, files) in crates() {
        let circles = circles(&files);
        assert!(
            circles.is_empty(),
            "{name}, modules in a circle: {circles:#?}"
        );
    }
}

#[test]
fn the_methods_of_a_type_stand_in_three_files_at_most() {
    for (name, files) in crates() {
        let found = scattered(&files, MOST_FILES);
        assert!(found.is_empty(), "{name}, types in many files: {found:#?}");
    }
}
