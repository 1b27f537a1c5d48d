//! docs/reference: every option as it is, and every key of gpuos.toml.

use gpuos_config::options::OPTIONS;

use crate::page;

const HEAD: &str = "\
# Options of sbatch, salloc and srun

What gpuos adds; [user/options.md](../user/options.md) is the short form. This page is made of the table in the code by `make reference`, as
`sbatch --help` and `man gpuos-options` are.
";

#[test]
fn the_page_has_every_option_as_it_is() {
    let mut text = HEAD.to_string();
    for option in OPTIONS {
        let details: Vec<&str> = option.details.split_whitespace().collect();
        text += &format!(
            "\n## `--{}={}`\n\n{}\n\nDefault in the environment: `{}`.\n",
            option.name,
            option.argument,
            details.join(" ").replace('<', "\\<"),
            option.environment
        );
    }
    page::hold("reference/options.md", &text, "make reference");
}

#[test]
fn the_page_for_users_has_a_row_of_each_option() {
    let page = include_str!("../../../docs/user/options.md");
    for option in OPTIONS {
        let (first, last) = (
            format!("| `--{}` |", option.name),
            format!("| `{}` |", option.environment),
        );
        let is_row = |line: &str| line.starts_with(&first) && line.ends_with(&last);
        assert!(
            page.lines().any(is_row),
            "docs/user/options.md has no row `{first} values | what it says {last}`: add it"
        );
    }
}

const SAMPLE: &str = include_str!("../../../packaging/gpuos.toml.sample");

const KEYS_HEAD: &str = "\
# Keys of gpuos.toml

Every key, with its default or an example where there is none. This page is made of `packaging/gpuos.toml.sample` by `make reference`; a test holds that
file against what the program reads.
";

/// `# text` of the sample, without the sign.
fn comment(line: &str) -> Option<&str> {
    line.strip_prefix("# ").or((line == "#").then_some(""))
}

/// `[table]` or `[[table]]`, also as an example.
fn table(line: &str) -> Option<&str> {
    let line = line.strip_prefix('#').unwrap_or(line);
    let name = line.strip_prefix('[')?.strip_suffix(']')?;
    name.chars()
        .all(|c| c.is_ascii_lowercase() || "[].-".contains(c))
        .then_some(line)
}

/// `key = value` of a line of the sample, which stands behind a sign there.
fn key(line: &str) -> Option<(&str, &str)> {
    let (key, value) = line.strip_prefix('#')?.split_once(" = ")?;
    let named = |key: &str| key.chars().all(|c| c.is_ascii_lowercase() || c == '-');
    named(key).then_some((key, value))
}

#[test]
fn the_page_of_keys_is_the_sample() {
    let mut text = KEYS_HEAD.to_string();
    // What was said since the last key: it is about the next ones.
    let mut said: Vec<&str> = Vec::new();
    let mut lines = SAMPLE.lines();
    let mut keys = 0;
    while let Some(line) = lines.next() {
        if let Some(name) = table(line) {
            // What it is for stands before it.
            text += &format!("\n## `{name}`\n{}", paragraph(&mut said));
        } else if let Some(words) = comment(line) {
            said.push(words);
        } else if let Some((name, first)) = key(line) {
            let mut value = first.to_string();
            while value.ends_with('[') || value.contains("= [") && !value.ends_with(']') {
                let Some(row) = lines.next() else { break };
                value += row.trim_start_matches('#').trim();
            }
            text += &format!("\n`{name} = {value}`\n{}", paragraph(&mut said));
            keys += 1;
        } else if line.is_empty() {
            text += &paragraph(&mut said);
        }
    }
    assert!(keys > 100, "{keys} keys");
    page::hold("reference/keys.md", &text, "make reference");
}

/// What was said, as a paragraph with an empty line before it; it is said no more. Empty where nothing was said.
fn paragraph(said: &mut Vec<&str>) -> String {
    if said.is_empty() {
        return String::new();
    }
    let text = std::mem::take(said).join(" ").replace('<', "\\<");
    format!("\n{}\n", text.trim().replace("  ", "\n\n"))
}
