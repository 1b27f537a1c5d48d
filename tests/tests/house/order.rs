//! Order inside a crate, read from its text: which of its modules name which, and in how many files the methods of a type stand.
//!
//! A module is what the root of a crate declares, with all that lies below it; the root itself is the module `crate`. Tests may name
//! whatever they like.

use std::collections::{BTreeMap, BTreeSet};

/// A source file: its path below `src`, and its text.
pub type File = (String, String);

/// The root of a crate, as a module.
const ROOT: &str = "crate";

/// A file without comments, texts and tests.
struct Source {
    /// The modules it lies in, from the root; empty for the root.
    module: Vec<String>,
    path: String,
    /// Pieces of code: words and single characters.
    code: Vec<String>,
}

/// Modules that name each other in a circle, each circle in order.
pub fn circles(files: &[File]) -> Vec<Vec<String>> {
    let uses = uses(&sources(files));
    let reached: BTreeMap<&String, BTreeSet<&String>> = uses
        .keys()
        .map(|module| (module, reach(&uses, module)))
        .collect();
    let mut circles: Vec<Vec<String>> = Vec::new();
    for (module, others) in &reached {
        let back = |other: &&&String| reached.get(*other).is_some_and(|r| r.contains(module));
        let circle: Vec<String> = others.iter().filter(back).copied().cloned().collect();
        if circle.len() > 1 && !circles.contains(&circle) {
            circles.push(circle);
        }
    }
    circles
}

/// All modules that a way leads to.
fn reach<'a>(
    uses: &'a BTreeMap<String, BTreeSet<String>>,
    from: &'a String,
) -> BTreeSet<&'a String> {
    let mut seen = BTreeSet::new();
    let mut next = vec![from];
    while let Some(module) = next.pop() {
        let named = uses.get(module).into_iter().flatten();
        next.extend(named.filter(|named| seen.insert(*named)));
    }
    seen
}

/// What each module names of the others.
fn uses(sources: &[Source]) -> BTreeMap<String, BTreeSet<String>> {
    let top = |source: &Source| source.module.first().cloned().unwrap_or(ROOT.into());
    let known: BTreeSet<String> = sources.iter().map(top).collect();
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for source in sources {
        let own = top(source);
        for path in paths(source) {
            let named = path.first().filter(|name| known.contains(*name));
            let named = named.cloned().unwrap_or(ROOT.into());
            let entry = uses.entry(own.clone()).or_default();
            if named != own {
                entry.insert(named);
            }
        }
    }
    uses
}

/// Types whose own methods stand in more than `most` files, by the path of the type, with these files.
pub fn scattered(files: &[File], most: usize) -> BTreeMap<String, BTreeSet<String>> {
    let sources = sources(files);
    let mut defined: BTreeMap<String, Vec<Vec<String>>> = BTreeMap::new();
    for source in &sources {
        for pair in source.code.windows(2) {
            if ["struct", "enum", "union"].contains(&pair[0].as_str()) {
                let modules = defined.entry(pair[1].clone()).or_default();
                modules.push(source.module.clone());
            }
        }
    }
    let mut places: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for source in &sources {
        let imported = paths(source);
        for name in own_impls(&source.code) {
            let Some(candidates) = defined.get(&name) else {
                continue;
            };
            // What a `use` line says, else what lies nearest.
            let named = imported.iter().find(|path| path.last() == Some(&name));
            let near = match named {
                Some(path) if !candidates.contains(&source.module) => &path[..path.len() - 1],
                _ => &source.module[..],
            };
            let common = |module: &&Vec<String>| {
                let same = module.iter().zip(near).take_while(|(a, b)| a == b).count();
                (same, usize::MAX - module.len())
            };
            if let Some(module) = candidates.iter().max_by_key(common) {
                let mut path = module.clone();
                path.push(name);
                let files = places.entry(path.join("::")).or_default();
                files.insert(source.path.clone());
            }
        }
    }
    places.retain(|_, files| files.len() > most);
    places
}

/// The types of all `impl` blocks that are not of a trait.
fn own_impls(code: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    for at in 0..code.len() {
        // Not `-> impl Trait` nor `: impl Trait`: a block begins where an item does.
        let begins = at == 0 || ["}", "]", ";", "unsafe"].contains(&code[at - 1].as_str());
        if code[at] != "impl" || !begins {
            continue;
        }
        let mut depth = 0i32;
        let (mut name, mut of_trait) = (None, false);
        for word in &code[at + 1..] {
            match word.as_str() {
                "{" | "where" if depth == 0 => break,
                "<" => depth += 1,
                ">" => depth -= 1,
                "for" if depth == 0 => of_trait = true,
                word if depth == 0 && is_name(word) => name = Some(word.to_string()),
                _ => {}
            }
        }
        found.extend(name.filter(|_| !of_trait));
    }
    found
}

/// All paths in a file that begin with `crate` or `super`, from the root of the crate.
fn paths(source: &Source) -> Vec<Vec<String>> {
    let code = &source.code;
    let mut found = Vec::new();
    let mut at = 0;
    while at < code.len() {
        let begins = at == 0 || code[at - 1] != ":" && code[at - 1] != "$" && code[at - 1] != "(";
        // `pub(crate)`, `pub(super)` are no paths.
        let begins = begins || code.get(at + 1).is_some_and(|next| next == ":");
        let inside = at > 0 && code[at - 1] == ":";
        if begins && !inside && (code[at] == "crate" || code[at] == "super") {
            let before = match code[at].as_str() {
                "crate" => Vec::new(),
                _ => above(&source.module),
            };
            at = tree(code, at + 1, before, &mut found);
        } else {
            at += 1;
        }
    }
    found
}

/// Paths into the crates of this workspace, or into a library, that each file names: the file, and the path.
pub fn foreign(files: &[File]) -> Vec<(String, Vec<String>)> {
    let mut all = Vec::new();
    for source in sources(files) {
        let code = &source.code;
        let mut at = 0;
        while at < code.len() {
            // `::name` begins a path as well, `a::name` does not.
            let inside = at > 2 && code[at - 1] == ":" && is_name(&code[at - 3]);
            let begins = code.get(at + 1).is_some_and(|next| next == ":");
            if inside || !begins || !code[at].starts_with("gpuos_") {
                at += 1;
                continue;
            }
            let mut found = Vec::new();
            at = tree(code, at + 1, vec![code[at].clone()], &mut found);
            all.extend(found.into_iter().map(|path| (source.path.clone(), path)));
        }
    }
    all
}

fn above(module: &[String]) -> Vec<String> {
    module[..module.len().saturating_sub(1)].to_vec()
}

/// Follows a path, or a tree of a `use` line, from behind its last word; returns where it ends.
fn tree(
    code: &[String],
    mut at: usize,
    mut path: Vec<String>,
    found: &mut Vec<Vec<String>>,
) -> usize {
    while code.get(at).is_some_and(|c| c == ":") && code.get(at + 1).is_some_and(|c| c == ":") {
        at += 2;
        match code.get(at).map(String::as_str) {
            Some("super") => path = above(&path),
            Some("self") => {}
            Some("{") => {
                at += 1;
                while let Some(word) = code.get(at).map(String::as_str) {
                    match word {
                        "}" => return at + 1,
                        "," => at += 1,
                        "as" => at += 2,
                        word => {
                            let mut inner = path.clone();
                            match word {
                                "self" => {}
                                "super" => inner = above(&inner),
                                word => inner.push(word.into()),
                            }
                            at = tree(code, at + 1, inner, found);
                        }
                    }
                }
                return at;
            }
            Some(word) if is_name(word) || word == "*" => path.push(word.into()),
            _ => break,
        }
        at += 1;
    }
    found.push(path);
    at
}

fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && !["dyn", "mut", "const", "as"].contains(&word)
}

/// The files of a crate, without its tests.
fn sources(files: &[File]) -> Vec<Source> {
    let mut tests: Vec<Vec<String>> = Vec::new();
    let mut sources = Vec::new();
    for (path, text) in files.iter().filter(|(path, _)| !path.starts_with("bin/")) {
        let module = module_of(path);
        let (code, only_tests) = without_tests(pieces(text));
        tests.extend(only_tests.into_iter().map(|name| {
            let mut module = module.clone();
            module.push(name);
            module
        }));
        sources.push(Source {
            module,
            path: path.clone(),
            code,
        });
    }
    sources.retain(|source| !tests.iter().any(|test| source.module.starts_with(test)));
    sources
}

fn module_of(path: &str) -> Vec<String> {
    let path = path.trim_end_matches(".rs");
    let mut module: Vec<String> = path.split('/').map(String::from).collect();
    let last = module.last().map_or("", String::as_str);
    if last == "mod" || module.len() == 1 && (last == "lib" || last == "main") {
        module.pop();
    }
    module
}

/// Takes out what stands behind `#[cfg(test)]`, and tells the names of the modules in other files that do.
fn without_tests(code: Vec<String>) -> (Vec<String>, Vec<String>) {
    let mark = ["#", "[", "cfg", "(", "test", ")", "]"];
    let (mut kept, mut modules) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < code.len() {
        if !code[at..].iter().take(mark.len()).eq(mark.iter()) {
            kept.push(code[at].clone());
            at += 1;
            continue;
        }
        at += mark.len();
        let start = at;
        let mut depth = 0i32;
        while let Some(word) = code.get(at).map(String::as_str) {
            at += 1;
            match word {
                "{" | "(" | "[" => depth += 1,
                "}" | ")" | "]" => depth -= 1,
                _ => {}
            }
            if depth == 0 && (word == ";" || word == "}") {
                break;
            }
        }
        let item = &code[start..at];
        let module = item.iter().position(|word| word == "mod");
        let elsewhere = item.last().is_some_and(|word| word == ";");
        modules.extend(module.filter(|_| elsewhere).map(|at| item[at + 1].clone()));
    }
    (kept, modules)
}

/// Words and single characters of a text, without blanks, comments, and what stands in quotes.
fn pieces(text: &str) -> Vec<String> {
    let c: Vec<char> = text.chars().collect();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut out = Vec::new();
    let mut at = 0;
    while at < c.len() {
        let next = c.get(at + 1).copied().unwrap_or_default();
        match c[at] {
            '/' if next == '/' => at += c[at..].iter().take_while(|c| **c != '\n').count(),
            '/' if next == '*' => {
                let mut depth = 0;
                while at < c.len() {
                    let two = (c[at], c.get(at + 1).copied().unwrap_or_default());
                    match two {
                        ('/', '*') => depth += 1,
                        ('*', '/') => depth -= 1,
                        _ => {
                            at += 1;
                            continue;
                        }
                    }
                    at += 2;
                    if depth == 0 {
                        break;
                    }
                }
            }
            '"' => at = behind_text(&c, at + 1),
            // A lifetime has no quote behind its name.
            '\'' if next == '\\' => {
                at += 3;
                at += c[at.min(c.len())..]
                    .iter()
                    .take_while(|c| **c != '\'')
                    .count()
                    + 1;
            }
            '\'' if c.get(at + 2) == Some(&'\'') => at += 3,
            '\'' => at += 1,
            first if is_word(first) => {
                let word: String = c[at..].iter().take_while(|c| is_word(**c)).collect();
                at += word.chars().count();
                let raw = ["r", "br", "cr"].contains(&word.as_str());
                let marks = c[at..].iter().take_while(|c| **c == '#').count();
                match c.get(at + marks) {
                    Some('"') if raw => at = behind_raw(&c, at + marks + 1, marks),
                    // b"..", c"..": the quote comes next.
                    _ => out.push(word),
                }
            }
            blank if blank.is_whitespace() => at += 1,
            other => {
                out.push(other.to_string());
                at += 1;
            }
        }
    }
    out
}

fn behind_text(c: &[char], mut at: usize) -> usize {
    while at < c.len() {
        match c[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    at
}

fn behind_raw(c: &[char], mut at: usize, marks: usize) -> usize {
    while at < c.len() {
        let end = c[at] == '"'
            && c[at + 1..]
                .iter()
                .take(marks)
                .filter(|c| **c == '#')
                .count()
                == marks;
        at += 1;
        if end {
            return at + marks;
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> Vec<File> {
        let owned = |(path, text): &(&str, &str)| (path.to_string(), text.to_string());
        files.iter().map(owned).collect()
    }

    fn circles_of(files: &[(&str, &str)]) -> Vec<String> {
        let circles = circles(&tree(files));
        circles.iter().map(|circle| circle.join(" ")).collect()
    }

    #[test]
    fn modules_in_order_make_no_circle() {
        let files = [
            ("lib.rs", "pub mod a; pub mod b; pub use a::A;"),
            (
                "a.rs",
                "use crate::b::{self, c::C}; fn f() { crate::b::g() }",
            ),
            ("b/mod.rs", "mod c; pub use c::C; pub fn g() {}"),
            ("b/c.rs", "use super::g; pub struct C;"),
        ];
        assert!(circles_of(&files).is_empty());
    }

    #[test]
    fn circles_are_found_however_they_are_written() {
        let lib = ("lib.rs", "mod a; mod b; mod c;");
        for back in [
            "use crate::a::A;",
            "use crate::{c, a::{self, A}};",
            "use super::a::A;",
            "fn f() -> crate::a::A { todo() }",
            "fn f<'a>(x: &'a str) { let c = '\"'; super::a::g(x) }",
            "fn f() { let t = r#\"\"#; crate::a::g(t) }",
        ] {
            let files = [
                lib,
                ("a.rs", "use crate::b::B;"),
                ("b.rs", back),
                ("c.rs", ""),
            ];
            assert_eq!(circles_of(&files), ["a b"], "{back}");
        }
        let long = [
            lib,
            ("a.rs", "use crate::b::B;"),
            ("b/x.rs", "use super::super::c::C;"),
            ("b/mod.rs", "mod x;"),
            ("c.rs", "use crate::a::A;"),
        ];
        assert_eq!(circles_of(&long), ["a b c"]);
        // The root uses what it declares, and a module uses the root.
        let root = [
            (
                "lib.rs",
                "mod a; fn f() { crate::a::g() } pub const N: u8 = 0;",
            ),
            ("a.rs", "use crate::N;"),
        ];
        assert_eq!(circles_of(&root), ["a crate"]);
    }

    #[test]
    fn tests_comments_and_texts_name_nothing() {
        for nothing in [
            "// crate::a::A",
            "/* /* crate::a */ crate::a::A */",
            "const T: &str = \"crate::a::A\";",
            "const T: &[u8] = br##\"\"# crate::a::A\"##;",
            "pub(crate) fn f() {} pub(super) mod x {}",
            "#[cfg(test)] mod tests { use crate::a::A; fn f() {} }",
            "#[cfg(test)] use crate::a::A;",
        ] {
            let files = [
                ("lib.rs", "mod a; mod b;"),
                ("a.rs", "use crate::b::B;"),
                ("b.rs", nothing),
            ];
            assert!(circles_of(&files).is_empty(), "{nothing}");
        }
        let files = [
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "use crate::b::B;"),
            ("b/mod.rs", "#[cfg(test)]\nmod tests;"),
            ("b/tests.rs", "use crate::a::A;"),
        ];
        assert!(circles_of(&files).is_empty());
    }

    #[test]
    fn methods_in_many_files_are_found() {
        let files = tree(&[
            ("lib.rs", "mod a; mod b;"),
            (
                "a/mod.rs",
                "mod x; mod y; pub struct T<'a>(&'a str); pub struct U;",
            ),
            (
                "a/x.rs",
                "use super::{T, U}; impl T<'_> { fn f(&self) -> impl Fn() { || () } } impl U {}",
            ),
            (
                "a/y.rs",
                "use super::*; impl<'a> T<'a> where 'a: 'static {} impl U {} impl Clone for T<'_> {}",
            ),
            (
                "b/mod.rs",
                "mod z; struct U; impl U {} #[cfg(test)] mod tests;",
            ),
            (
                "b/z.rs",
                "use crate::a::T; unsafe fn f() {} impl T<'_> {} impl super::U {}",
            ),
            ("b/tests.rs", "impl crate::a::T<'_> {}"),
        ]);
        let found = scattered(&files, 2);
        let found: Vec<_> = found
            .iter()
            .map(|(name, files)| (name.as_str(), files.len()))
            .collect();
        assert_eq!(found, [("a::T", 3)]);
        assert_eq!(scattered(&files, 1).len(), 3);
        assert!(scattered(&files, 3).is_empty());
    }
}
