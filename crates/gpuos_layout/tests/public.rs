//! Where libslurm-dev is installed: its public headers, read by bindgen, say the same as the
//! table that the plugins carry for that release.

use std::collections::BTreeMap;
use std::path::Path;

/// Structures that stand in the public headers.
const PUBLIC: [&str; 2] = ["job_descriptor", "slurm_conf"];

fn number(text: &str) -> (u32, u32, u32) {
    let mut parts = text
        .split('.')
        .map(|part| part.parse::<u32>().expect("a number"));
    let mut next = || parts.next().expect("three numbers");
    (next(), next(), next())
}

#[test]
fn installed_headers_agree_with_the_table() {
    if !Path::new("/usr/include/slurm/slurm.h").exists() {
        println!("skipped: libslurm-dev is not installed");
        return;
    }
    if std::panic::catch_unwind(bindgen::clang_version).is_err() {
        println!("skipped: libclang is not installed");
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let rust = bindgen::Builder::default()
        .header(root.join("include/slurm_public.h").to_string_lossy())
        .allowlist_type("job_descriptor|slurm_conf_t")
        .allowlist_var("SLURM_VERSION_NUMBER")
        .generate()
        .expect("bindings of slurm.h")
        .to_string();
    // Laid out by rustfmt where that is installed; the same without blanks everywhere.
    let rust: String = rust.split_whitespace().collect();
    let version: u32 = rust
        .split("SLURM_VERSION_NUMBER:u32=")
        .nth(1)
        .and_then(|rest| rest.split(';').next()?.parse().ok())
        .expect("the release of the headers");
    let release = (version >> 16, version >> 8 & 0xff, version & 0xff);

    let mut table = BTreeMap::new();
    let text =
        std::fs::read_to_string(root.join("crates/slurm_ffi/data/layouts.tsv")).expect("the table");
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let columns: Vec<&str> = line.split('\t').collect();
        if PUBLIC.contains(&columns[0])
            && (number(columns[5])..=number(columns[6])).contains(&release)
        {
            table.insert(
                (columns[0].to_owned(), columns[1].to_owned()),
                columns[2].to_owned(),
            );
        }
    }
    if table.is_empty() {
        println!("skipped: the table has no rows for the installed release {release:?}");
        return;
    }

    let mut compared = 0;
    for part in rust.split("\"Offsetoffield:").skip(1) {
        let Some((name, rest)) = part.split_once('"') else {
            continue;
        };
        let Some((structure, field)) = name.split_once("::") else {
            continue;
        };
        // slurm_conf_t is the alias of a structure of the same name less "_t", or of none.
        let structure = structure.trim_end_matches("_t").to_owned();
        let offset = rest.split('-').nth(1).and_then(|o| o.split("usize").next());
        // bindgen renames fields that are Rust keywords by adding an underscore.
        let known = table
            .get(&(structure.clone(), field.to_owned()))
            .or_else(|| table.get(&(structure.clone(), field.trim_end_matches('_').to_owned())));
        if let Some(known) = known {
            assert_eq!(
                offset,
                Some(known.as_str()),
                "{structure}.{field} of {release:?}"
            );
            compared += 1;
        }
    }
    println!("{compared} offsets of {release:?} compared");
    assert!(
        compared > 200,
        "only {compared} offsets were found in the bindings"
    );
}
