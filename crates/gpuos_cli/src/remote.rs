//! The same command on another node, over ssh or what `--via` names.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use gpuos_host::Machine;
use serde_json::{Deserializer, Value};

/// How long another node may take.
const PATIENCE: Duration = Duration::from_secs(90);

/// ` --runtime-dir=…` for the command on another node, where it is not the default.
pub fn runtime_dir(dir: &Path) -> String {
    match dir == Path::new(crate::daemons::RUNTIME_DIR) {
        true => String::new(),
        false => format!(" --runtime-dir={}", quoted(&dir.display().to_string())),
    }
}

/// Whether it may be a node's name: a word that neither a shell nor ssh takes for anything else.
pub fn is_node(name: &str) -> bool {
    let named = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !name.is_empty() && !name.starts_with('-') && name.chars().all(named)
}

/// A word that the other node's shell takes as it is.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// `--via` and the node, as a program and its arguments.
fn words<'a>(via: &'a str, node: &'a str) -> Result<(&'a str, Vec<&'a str>)> {
    let mut words = via.split_whitespace();
    let program = words
        .next()
        .context("--via is empty: write for example ssh")?;
    Ok((program, words.chain([node]).collect()))
}

/// What `gpuos --json …` says on that node, and whether it ended well.
///
/// # Errors
/// The node cannot be reached, or the command there failed; a sentence with what was said.
pub fn ask(machine: &dyn Machine, via: &str, node: &str, line: &str) -> Result<(Value, bool)> {
    ask_within(machine, PATIENCE, via, node, line)
}

/// The same of a command that may take longer.
///
/// # Errors
/// As [`ask`].
pub fn ask_within(
    machine: &dyn Machine,
    limit: Duration,
    via: &str,
    node: &str,
    line: &str,
) -> Result<(Value, bool)> {
    let (program, mut all) = words(via, node)?;
    all.push(line);
    let output = machine.run_within(limit, program, &all).or_else(|error| {
        crate::daemons::check_known(machine, node)?;
        Err(error).with_context(|| format!("cannot reach {node}"))
    })?;
    let Some(told) = object(&output.stdout) else {
        crate::daemons::check_known(machine, node)?;
        let said = [output.stderr.trim(), output.stdout.trim()];
        let said = said.into_iter().find(|said| !said.is_empty());
        bail!(
            "no answer from {node} by `{via}`: {}",
            said.unwrap_or("it said nothing")
        );
    };
    if let Some(error) = told["error"].as_str() {
        bail!("{node}: {error}");
    }
    Ok((told, output.ok))
}

/// The object in what was written: a login shell may greet before and after it.
fn object(text: &str) -> Option<Value> {
    let starts = text.match_indices('{').map(|(at, _)| at);
    let starts = starts.filter(|at| *at == 0 || text[..*at].ends_with('\n'));
    let mut values = starts.filter_map(|at| {
        let mut rest = Deserializer::from_str(&text[at..]).into_iter::<Value>();
        rest.next()?.ok()
    });
    values.find(|value| value.get("schema").is_some())
}

/// Runs the command there until it ends; what it writes goes where this command writes.
///
/// # Errors
/// The program of `--via` cannot be started, or it failed.
pub fn watch(via: &str, node: &str, line: &str) -> Result<()> {
    let (program, mut all) = words(via, node)?;
    all.push(line);
    let status = Command::new(program).args(&all).status();
    let status = status.with_context(|| format!("cannot run `{via}`"))?;
    match status.success() {
        true => Ok(()),
        false => bail!("no more from {node} by `{via}`: it ended with {status}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_is_found_among_what_a_shell_says() {
        let text = "Welcome to {n3}\n{ motd }\n{\n  \"schema\": \"gpuos.admin/1\"\n}\nbye {}\n";
        assert_eq!(object(text).unwrap()["schema"], "gpuos.admin/1");
        for none in ["", "{", "{}", "[1]", "no {\"schema\": 1}"] {
            assert_eq!(object(none), None, "{none}");
        }
    }

    #[test]
    fn names_of_nodes_are_plain_words() {
        for good in ["n3", "gpu-a.x", "N_1"] {
            assert!(is_node(good), "{good}");
        }
        for bad in [
            "",
            "-oProxyCommand=x",
            "n3;id",
            "n 3",
            "$(id)",
            "n[1-2]",
            "a@b",
            "n3\n",
            "ä",
        ] {
            assert!(!is_node(bad), "{bad}");
        }
    }
}
