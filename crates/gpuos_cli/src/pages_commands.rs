//! Each `gpuos …` that a page tells people to type is one that the parser takes, and each `--gpuos-…=VALUE` one that a job may
//! have. What the commands answer is held by the tests of the commands.

use std::path::PathBuf;

use clap::CommandFactory;
use clap::error::ErrorKind;
use gpuos_config::options::JobOptions;

/// The pages that users and administrators read.
fn pages() -> Vec<(PathBuf, String)> {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut paths = vec![root.join("README.md")];
    for folder in ["docs/user", "docs/admin"] {
        let entries = std::fs::read_dir(root.join(folder)).expect("the folder");
        paths.extend(entries.map(|entry| entry.expect("an entry").path()));
    }
    paths.retain(|path| path.extension().is_some_and(|ext| ext == "md"));
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).expect("the page");
        (path, text)
    };
    paths.into_iter().map(read).collect()
}

/// What stands between backticks, and lines of blocks without the remark after them.
fn commands(text: &str) -> Vec<String> {
    let spans = text.split('`').skip(1).step_by(2).map(String::from);
    let blocks = text.lines().filter_map(|line| line.strip_prefix("    "));
    let blocks = blocks.map(|line| {
        let line = line.trim_start_matches("$ ");
        let ends = ["  ", " #", " >"].iter().filter_map(|end| line.find(end));
        line[..ends.min().unwrap_or(line.len())].to_string()
    });
    let all = spans.chain(blocks);
    all.filter(|command| command.starts_with("gpuos "))
        .collect()
}

/// Words as a shell would see them; brackets are the page's.
fn words(command: &str) -> Vec<String> {
    let quoted = command
        .split('"')
        .enumerate()
        .flat_map(|(nth, part)| match nth % 2 {
            1 => vec![part.to_string()],
            _ => part
                .split_whitespace()
                .map(|word| word.trim_matches(['[', ']']).to_string())
                .collect(),
        });
    // What stands for a value that not every word is.
    let example = |word: String| match word.as_str() {
        "JOBID" => "7".to_string(),
        "REQUEST" => "3g.40gb".to_string(),
        _ => word.replace('…', "3g.40gb"),
    };
    quoted.filter(|word| word != "...").map(example).collect()
}

#[test]
fn commands_of_pages_are_ones_that_the_parser_takes() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (path, text) in pages() {
        for command in commands(&text) {
            // `gpuos health --watch | --audit`: each flag with the command in front.
            let mut all = command.split(" | ").map(String::from);
            let first = all.next().expect("split gives one");
            let front = first
                .split(" --")
                .next()
                .expect("split gives one")
                .to_string();
            for one in
                std::iter::once(first.clone()).chain(all.map(|flag| format!("{front} {flag}")))
            {
                let words = words(&one);
                // A line of output, such as "gpuos ranks, shape tp2:pp2".
                if words.iter().take(2).any(|word| word.ends_with(',')) {
                    continue;
                }
                seen += 1;
                let parsed = crate::cli::Cli::command().try_get_matches_from(&words);
                let Err(e) = parsed else { continue };
                let named = [
                    ErrorKind::DisplayHelp,
                    ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand,
                    ErrorKind::MissingRequiredArgument,
                    ErrorKind::MissingSubcommand,
                ];
                // A command that is only named; COMMAND stands for any.
                if !named.contains(&e.kind()) && words.get(1).is_none_or(|word| word != "COMMAND") {
                    wrong.push(format!("{}: `{one}`: {}", path.display(), e.kind()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 60, "{seen} commands were found");
}

#[test]
fn options_of_pages_are_ones_that_jobs_may_have() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (path, text) in pages() {
        for (at, _) in text.match_indices("--gpuos") {
            let ends = |c: char| c.is_whitespace() || "`\"')(<>\\|;".contains(c);
            let rest = &text[at + 2..];
            let word = &rest[..rest.find(ends).unwrap_or(rest.len())];
            let Some((name, value)) = word.split_once('=') else {
                continue;
            };
            let value = value.trim_end_matches([':', '.', ',']);
            // NAME, LEVEL and the like stand for values; `x` is the page's example of a wrong one.
            let stands_for = value.len() > 1 && value.chars().all(|c| c.is_ascii_uppercase());
            if stands_for
                || value.is_empty()
                || value == "x"
                || value.contains(['…', '*'])
                || word.contains("...")
            {
                continue;
            }
            seen += 1;
            if let Err(e) = JobOptions::default().set(name, value) {
                wrong.push(format!("{}: --{word}: {e}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 30, "{seen} options were found");
}
