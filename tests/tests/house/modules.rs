//! Modules form a DAG inside each crate, and no type's methods stand in more than three files. What does not hold yet is named here,
//! and these lists only get shorter: an entry that is too large fails as well.

use super::order::{File, circles, scattered};
use super::*;

/// Modules that still name each other in a circle.
const CIRCLES: [(&str, &str); 4] = [
    ("gpuos_lab", "accounting conf lab mig"),
    ("gpuos_lab", "install plugins spec"),
    ("gpuos_nvml", "exports mig"),
    ("gpuos_nvml", "hold model state"),
];

/// The most files in which methods of a type stand.
const MOST_FILES: usize = 3;

/// Types whose methods still stand in more, and in how many.
const SCATTERED: [(&str, &str, usize); 1] = [("gpuos_lab", "lab::Lab", 8)];

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

/// Why lists do not say what was found; nothing when they do. What is `within` an entry has got smaller.
fn compared<T: PartialEq + std::fmt::Debug>(
    found: &[T],
    allowed: &[T],
    within: impl Fn(&T, &T) -> bool,
) -> Vec<String> {
    let new = found
        .iter()
        .filter(|one| !allowed.iter().any(|entry| within(one, entry)));
    let new = new.map(|one| format!("new, and not to be: {one:?}"));
    let left = allowed.iter().filter(|entry| !found.contains(entry));
    let left = left.map(|entry| {
        let now: Vec<&T> = found.iter().filter(|one| within(one, entry)).collect();
        format!("not so any more, which is good: {entry:?} is now {now:?}")
    });
    new.chain(left).collect()
}

fn is_part(one: &str, of: &str) -> bool {
    one.split(' ')
        .all(|module| of.split_whitespace().any(|other| other == module))
}

#[test]
fn modules_name_each_other_in_one_direction() {
    let mut found = Vec::new();
    for (name, files) in crates() {
        let circles = circles(&files).into_iter();
        found.extend(circles.map(|circle| (name.clone(), circle.join(" "))));
    }
    let allowed: Vec<(String, String)> = CIRCLES
        .iter()
        .map(|(name, circle)| (name.to_string(), circle.to_string()))
        .collect();
    let wrong = compared(&found, &allowed, |one, entry| {
        one.0 == entry.0 && is_part(&one.1, &entry.1)
    });
    assert!(
        wrong.is_empty(),
        "modules in a circle, against CIRCLES: {wrong:#?}"
    );
}

#[test]
fn the_methods_of_a_type_stand_in_three_files_at_most() {
    let mut found = Vec::new();
    let mut places = Vec::new();
    for (name, files) in crates() {
        for (path, files) in scattered(&files, MOST_FILES) {
            found.push((name.clone(), path.clone(), files.len()));
            places.push(format!("{name} {path}: {files:?}"));
        }
    }
    let allowed: Vec<(String, String, usize)> = SCATTERED
        .iter()
        .map(|&(name, path, count)| (name.into(), path.into(), count))
        .collect();
    let wrong = compared(&found, &allowed, |one, entry| {
        (&one.0, &one.1) == (&entry.0, &entry.1) && one.2 <= entry.2
    });
    assert!(
        wrong.is_empty(),
        "types in many files, against SCATTERED: {wrong:#?} {places:#?}"
    );
}

#[test]
fn lists_of_what_does_not_hold_only_get_shorter() {
    let entry = |text: &str| ("c".to_string(), text.to_string());
    let within = |one: &(String, String), entry: &(String, String)| is_part(&one.1, &entry.1);
    let check = |found: &[&str], allowed: &[&str]| {
        let found: Vec<_> = found.iter().map(|text| entry(text)).collect();
        let allowed: Vec<_> = allowed.iter().map(|text| entry(text)).collect();
        compared(&found, &allowed, within).len()
    };
    assert_eq!(check(&["a b"], &["a b"]), 0);
    assert_eq!(check(&[], &[]), 0);
    // A circle that is new, one that has grown, one that has shrunk, one that is gone.
    assert_eq!(check(&["a b"], &[]), 1);
    assert_eq!(check(&["a b c"], &["a b"]), 2);
    assert_eq!(check(&["a b"], &["a b c"]), 1);
    assert_eq!(check(&[], &["a b"]), 1);
}
