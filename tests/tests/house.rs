//! The rules of the house: which crate may depend on which, licences, the table of exported
//! symbols, and what no source file may hold.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::{Object, ObjectSymbol};
use serde_json::Value;

#[path = "house/modules.rs"]
mod modules;
#[path = "house/needs.rs"]
mod needs;
#[path = "house/order.rs"]
mod order;
#[path = "house/seam.rs"]
mod seam;
#[path = "house/units.rs"]
mod units;
#[path = "house/uses.rs"]
mod uses;

use uses::{MAY_USE, THINKING};

const GPL: &str = "GPL-3.0-or-later";
const FREE: &str = "MIT OR Apache-2.0";

/// What Slurm loads.
const PLUGINS: [&str; 4] = [
    "select_gpuos",
    "spank_gpuos",
    "job_submit_gpuos",
    "gres_gpuos",
];

/// What PBS's moms load.
const PBS_HOOK: &str = "pbs_hook";

/// What is loaded into daemons of a workload manager: crate and file.
fn libraries() -> impl Iterator<Item = (&'static str, String)> {
    let plugins = PLUGINS.into_iter();
    let plugins = plugins.map(|plugin| (plugin, format!("lib{plugin}.so")));
    plugins.chain([(PBS_HOOK, "libgpuos_pbs_hook.so".to_string())])
}

/// Crates under the GPL: what Slurm loads, and what knows Slurm's structures. All others are
/// `MIT OR Apache-2.0`.
const GPL_CRATES: [&str; 5] = [
    "slurm_ffi",
    "select_gpuos",
    "spank_gpuos",
    "job_submit_gpuos",
    "gres_gpuos",
];

/// Crates from outside that [`THINKING`] may use, directly: they read and write text or bytes in memory and do nothing else.
const PURE: [&str; 7] = [
    "postcard",
    "saphyr-parser",
    "serde",
    "serde_json",
    "toml",
    "criterion",
    "proptest",
];

/// Licences that a dependency may have.
const ALLOWED: [&str; 12] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MPL-2.0",
    "Unicode-3.0",
    "Zlib",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn cargo(arguments: &[&str]) -> Vec<u8> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| env!("CARGO").into());
    let out = Command::new(cargo)
        .args(arguments)
        .current_dir(root())
        .output()
        .expect("cargo runs");
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "cargo {arguments:?}: {errors}");
    out.stdout
}

struct Package {
    name: String,
    version: String,
    licence: String,
    /// Part of this workspace.
    own: bool,
    /// Its Cargo.toml.
    manifest: PathBuf,
    /// Names of direct dependencies of every kind.
    uses: BTreeSet<String>,
}

fn packages() -> Vec<Package> {
    let text = cargo(&[
        "metadata",
        "--format-version",
        "1",
        "--locked",
        "--all-features",
    ]);
    let metadata: Value = serde_json::from_slice(&text).expect("metadata is JSON");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    let list = metadata["packages"].as_array().expect("packages");
    list.iter()
        .map(|package| Package {
            name: text(&package["name"]),
            version: text(&package["version"]),
            licence: text(&package["license"]),
            own: package["source"].is_null(),
            manifest: text(&package["manifest_path"]).into(),
            uses: package["dependencies"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|dependency| text(&dependency["name"]))
                .collect(),
        })
        .collect()
}

#[test]
fn dependencies_point_one_way() {
    let packages = packages();
    let own: BTreeMap<&str, &Package> = packages
        .iter()
        .filter(|package| package.own)
        .map(|package| (package.name.as_str(), package))
        .collect();
    let ruled: BTreeMap<&str, &[&str]> = MAY_USE.into_iter().collect();
    assert_eq!(
        own.keys().collect::<Vec<_>>(),
        ruled.keys().collect::<Vec<_>>(),
        "a new crate needs a line in MAY_USE (house/uses.rs), and in the code map of ARCHITECTURE.md"
    );
    for (name, package) in &own {
        for used in &package.uses {
            let allowed = !own.contains_key(used.as_str()) || ruled[name].contains(&used.as_str());
            assert!(allowed, "{name} must not depend on {used}");
            assert!(
                !PLUGINS.contains(&used.as_str()) && used != PBS_HOOK,
                "{name} must not depend on the plugin {used}"
            );
        }
    }
    for name in THINKING {
        for used in &own[name].uses {
            assert!(
                PURE.contains(&used.as_str()) || THINKING.contains(&used.as_str()),
                "{name} does no I/O: it must not depend on {used}"
            );
        }
    }
}

#[test]
fn what_is_loaded_stands_at_the_top_and_the_rest_in_crates() {
    let root = root().canonicalize().expect("is there");
    for package in packages().iter().filter(|package| package.own) {
        let folder = package.manifest.parent().expect("a folder");
        let place = folder.strip_prefix(&root).expect("in this repository");
        let name = Path::new(&package.name);
        let wanted = if PLUGINS.contains(&package.name.as_str()) || package.name == PBS_HOOK {
            place == name
        } else {
            place == Path::new("crates").join(name) || place.starts_with("tests")
        };
        assert!(wanted, "{} stands in {}", package.name, place.display());
    }
}

#[test]
fn licences_of_our_crates() {
    let copying = read("COPYING");
    for package in packages().iter().filter(|package| package.own) {
        let gpl = GPL_CRATES.contains(&package.name.as_str());
        let wanted = if gpl { GPL } else { FREE };
        assert_eq!(package.licence, wanted, "licence of {}", package.name);
        assert!(
            copying.contains(&package.name),
            "COPYING does not name {}",
            package.name
        );
        for used in package.uses.iter().filter(|_| !gpl) {
            assert!(
                !GPL_CRATES.contains(&used.as_str()),
                "{} is {FREE}: it must not depend on {used}, which is {GPL}",
                package.name
            );
        }
    }
    for file in ["GPL-3.0-or-later.txt", "MIT.txt", "Apache-2.0.txt"] {
        assert!(read(&format!("LICENSES/{file}")).len() > 500, "{file}");
    }
}

#[test]
fn licences_of_dependencies() {
    let refused: Vec<String> = packages()
        .iter()
        .filter(|package| !package.own && !allowed(&package.licence))
        .map(|package| format!("{} {}: {}", package.name, package.version, package.licence))
        .collect();
    assert!(refused.is_empty(), "not in ALLOWED: {refused:?}");
}

/// Whether an SPDX expression can be met by [`ALLOWED`] licences. `/` is the old way to write OR.
fn allowed(expression: &str) -> bool {
    let spaced = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let mut words = spaced.split_whitespace().peekable();
    either(&mut words) == Some(true) && words.next().is_none()
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

// Each of these is `None` where the text is no expression.

fn either(words: &mut Words<'_>) -> Option<bool> {
    let mut met = both(words)?;
    while words.next_if_eq(&"OR").is_some() {
        met |= both(words)?;
    }
    Some(met)
}

fn both(words: &mut Words<'_>) -> Option<bool> {
    let mut met = one(words)?;
    while words.next_if_eq(&"AND").is_some() {
        met &= one(words)?;
    }
    Some(met)
}

fn one(words: &mut Words<'_>) -> Option<bool> {
    let mut name = words.next()?.to_string();
    if name == "(" {
        let met = either(words)?;
        return (words.next()? == ")").then_some(met);
    }
    if words.next_if_eq(&"WITH").is_some() {
        name = format!("{name} WITH {}", words.next()?);
    }
    Some(ALLOWED.contains(&name.as_str()))
}

#[test]
fn the_licence_reader_knows_its_expressions() {
    for good in [
        "MIT",
        "MIT/Apache-2.0",
        "Unlicense OR MIT",
        "(MIT OR Apache-2.0) AND Unicode-3.0",
        "Apache-2.0 WITH LLVM-exception OR GPL-2.0",
    ] {
        assert!(allowed(good), "{good}");
    }
    for bad in [
        "",
        "GPL-3.0-only",
        "MIT AND GPL-2.0",
        "MIT OR",
        "(MIT",
        "MIT)",
    ] {
        assert!(!allowed(bad), "{bad}");
    }
}

/// Names that a shared library defines for others.
fn exports(library: &Path) -> BTreeSet<String> {
    let data = fs::read(library).unwrap_or_else(|e| panic!("{}: {e}", library.display()));
    let file = object::File::parse(&*data).expect("an ELF file");
    file.dynamic_symbols()
        .filter(|symbol| symbol.is_definition() && symbol.is_global())
        .filter_map(|symbol| symbol.name().ok())
        .map(str::to_string)
        .collect()
}

/// The symbols in the rows of one section of SAFETY.md: what stands between backquotes in the
/// first column, and is a C name.
fn rows(text: &str, section: &str) -> Vec<String> {
    let part = text
        .split("\n## ")
        .find(|part| part.starts_with(section))
        .unwrap_or_else(|| panic!("SAFETY.md has no section {section}"));
    part.lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .filter_map(|line| line.split('`').next())
        .filter(|name| name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_'))
        .map(str::to_string)
        .collect()
}

#[test]
fn every_exported_symbol_has_a_row_in_safety_md() {
    let folder = gpuos_tests::plugins::built();
    let text = read("SAFETY.md");
    for (plugin, file) in libraries() {
        let exported = exports(&folder.join(file));
        let listed = rows(&text, plugin);
        let unique: BTreeSet<String> = listed.iter().cloned().collect();
        assert_eq!(
            listed.len(),
            unique.len(),
            "{plugin}: a symbol has two rows"
        );
        let without_row: Vec<_> = exported.difference(&unique).collect();
        let without_symbol: Vec<_> = unique.difference(&exported).collect();
        assert!(
            without_row.is_empty() && without_symbol.is_empty(),
            "{plugin}: exported without a row in SAFETY.md: {without_row:?}; rows without an exported symbol: {without_symbol:?}"
        );
    }
}

/// Every file of the repository with one of these endings, by path from its root.
#[test]
fn plugins_stay_mapped_once_they_are_loaded() {
    use object::read::elf::{Dyn, ElfFile64, FileHeader};
    for (plugin, file) in libraries() {
        let path = gpuos_tests::plugins::built().join(file);
        let data = fs::read(&path).expect("the built plugin");
        let file = ElfFile64::<object::Endianness>::parse(&*data).expect("an ELF file");
        let endian = file.endian();
        let sections = file
            .elf_header()
            .sections(endian, &*data)
            .expect("sections");
        let (entries, _) = sections
            .dynamic(endian, &*data)
            .expect("a dynamic section")
            .expect("a dynamic section");
        let flags = entries
            .iter()
            .find(|e| e.d_tag(endian) == u64::from(object::elf::DT_FLAGS_1))
            .map_or(0, |e| e.d_val(endian));
        assert!(
            flags & u64::from(object::elf::DF_1_NODELETE) != 0,
            "{plugin} is linked without -z nodelete; its build.rs asks for that"
        );
    }
}

fn files(endings: &[&str]) -> Vec<String> {
    fn walk(dir: &Path, prefix: &str, endings: &[&str], found: &mut Vec<String>) {
        for entry in fs::read_dir(dir).expect("a folder").flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{prefix}{name}");
            let kind = entry.file_type().expect("a kind");
            if kind.is_dir() && name != "target" && name != ".git" {
                walk(&entry.path(), &format!("{path}/"), endings, found);
            } else if kind.is_file() && endings.iter().any(|ending| name.ends_with(ending)) {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&root(), "", endings, &mut found);
    found.sort();
    found
}

#[test]
fn source_files_are_short_and_finished() {
    // Spelt apart, so that this file does not find itself.
    let left_over = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("#[ig", "nore"),
    ];
    let sources = files(&[".rs"]);
    assert!(sources.len() > 50, "{} files only", sources.len());
    for path in sources {
        let text = read(&path);
        let lines = text.lines().count();
        assert!(lines <= 700, "{path} has {lines} lines: one file, one idea");
        for word in left_over {
            assert!(!text.contains(word), "{path} holds {word}");
        }
    }
}

#[test]
fn every_crate_follows_the_lint_list_and_the_core_is_pure() {
    for package in packages().iter().filter(|package| package.own) {
        let manifest = fs::read_to_string(&package.manifest).expect("a manifest");
        assert!(
            manifest.contains("[lints]\nworkspace = true"),
            "{} does not inherit the lint list of the workspace",
            package.name
        );
    }
    for name in THINKING {
        assert!(read(&format!("crates/{name}/src/lib.rs")).contains("#![forbid(unsafe_code)]"));
    }
    let thinks = |path: &&String| {
        THINKING
            .iter()
            .any(|name| path.starts_with(&format!("crates/{name}/src")))
    };
    for path in files(&[".rs"]).iter().filter(thinks) {
        let text = read(path);
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for word in [
            "std::fs",
            "std::net",
            "std::time",
            "std::thread",
            "std::env",
            "println!",
        ] {
            assert!(!code.contains(word), "{path} uses {word}, and only thinks");
        }
    }
}

/// cargo looks for no test files where a manifest names the programs, and would say nothing of one that is left out.
#[test]
fn every_file_of_tests_is_run() {
    let manifests = files(&["Cargo.toml"]);
    let mut found = 0;
    for manifest in manifests {
        let text = read(&manifest);
        if !text.contains("\nautotests = false\n") {
            continue;
        }
        found += 1;
        let folder = manifest.trim_end_matches("Cargo.toml");
        let paths = text
            .lines()
            .filter_map(|line| line.strip_prefix("path = \"tests/"));
        let names: Vec<&str> = paths.map(|path| path.trim_end_matches(".rs\"")).collect();
        let program = |name: &&str| read(&format!("{folder}tests/{name}.rs"));
        let programs: String = names.iter().map(program).collect();
        for file in fs::read_dir(root().join(folder).join("tests")).expect("is there") {
            let file = file.expect("a file").file_name();
            let name = file.to_string_lossy();
            let Some(name) = name.strip_suffix(".rs") else {
                continue;
            };
            // The last is what tables.rs includes.
            let known = names.contains(&name) || name == "slurm_rows";
            assert!(
                known || programs.contains(&format!("\nmod {name};")),
                "no program of {folder}tests has `mod {name};`: its tests would not run"
            );
        }
    }
    assert!(found > 1, "{found}");
}

#[test]
fn links_between_documents_lead_somewhere() {
    for path in files(&[".md"]) {
        let text = read(&path);
        let folder = Path::new(&path).parent().unwrap_or(Path::new(""));
        for target in text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            let file = target.split('#').next().unwrap_or_default();
            if file.is_empty() || file.contains("://") || file.contains(' ') {
                continue;
            }
            assert!(
                root().join(folder).join(file).exists(),
                "{path} links to {file}, which is not there"
            );
        }
    }
}

#[test]
fn the_readme_names_the_commands_that_the_makefile_has() {
    let makefile = read("Makefile");
    let readme = read("README.md");
    for command in ["make demo", "make test"] {
        let target = command.strip_prefix("make ").unwrap_or_default();
        assert!(
            readme.contains(command),
            "README.md does not tell {command}"
        );
        assert!(makefile.contains(&format!("\n{target}:")), "no {command}");
        assert!(
            read(".ci/run").contains("make test"),
            "CI runs what the README tells"
        );
    }
}
