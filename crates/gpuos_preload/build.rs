//! Makes `data/functions.tsv` code: a row of the table for each function, and a wrapper for each that is not passed on and
//! whose wrapper is not written by hand.

use std::fmt::Write;
use std::path::Path;

const TABLE: &str = "data/functions.tsv";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={TABLE}");
    // Its thread and its functions are there as long as the process lives.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libgpuos_preload.so.0");
    let text = std::fs::read_to_string(TABLE).expect("the table of functions");
    let (mut rows, mut indices, mut wrappers) = (String::new(), String::new(), String::new());
    for (index, line) in text.lines().enumerate() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [export, base, since, class, count] = fields[..] else {
            panic!("{TABLE}:{}: five fields are wanted", index + 1);
        };
        let names: Vec<String> = (0..count.parse().unwrap_or(0))
            .map(|i| format!("a{i}"))
            .collect();
        let arguments = names.join(" ");
        let kind = match class {
            "pass" => "Pass",
            "own" => "Own",
            "gate" => "Gate",
            "launch" => "Launch",
            "graph" => "Graph",
            "pin" => "Pin",
            "stop" => "Stop",
            "refuse" => "Refuse",
            _ => panic!("{TABLE}:{}: no class '{class}'", index + 1),
        };
        let wrapper = match class {
            "pass" => "Wrapper::NONE".to_string(),
            "own" => format!("Wrapper(crate::exports::{export} as *const ())"),
            "launch" => {
                // Where the function and its arguments stand.
                let places = match base {
                    "cuLaunchKernel" => "a0 a9 a10",
                    "cuLaunchCooperativeKernel" => "a0 a9 -",
                    _ => "a1 a2 a3",
                };
                writeln!(
                    wrappers,
                    "launch!({index} {export} [{places}] {arguments});"
                )
                .unwrap();
                format!("Wrapper(crate::wrappers::{export} as *const ())")
            }
            _ => {
                writeln!(wrappers, "{class}!({index} {export} {arguments});").unwrap();
                format!("Wrapper(crate::wrappers::{export} as *const ())")
            }
        };
        writeln!(
            rows,
            "Row {{ export: c\"{export}\", base: \"{base}\", since: {since}, class: Class::{kind}, wrapper: {wrapper} }},"
        )
        .unwrap();
        writeln!(indices, "pub(crate) const {export}: usize = {index};").unwrap();
    }
    let count = text.lines().count();
    let rows = format!(
        "/// How many functions there are.\npub(crate) const COUNT: usize = {count};\n\n/// All of them, by export.\npub(crate) static ROWS: [Row; COUNT] = [\n{rows}];\n"
    );
    let folder = std::env::var("OUT_DIR").expect("cargo's folder");
    for (name, text) in [
        ("rows.rs", rows),
        ("indices.rs", indices),
        ("wrappers.rs", wrappers),
    ] {
        std::fs::write(Path::new(&folder).join(name), text).expect("cargo's folder");
    }
}
