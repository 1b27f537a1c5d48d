//! Man pages and shell completion, from the same table as the parser.

use std::path::Path;

use anyhow::{Context, Result};
use clap::CommandFactory;
use serde_json::json;

use crate::cli::{Cli, CompletionArgs, ManArgs, Shell};
use crate::reply::Reply;

pub fn completion(args: &CompletionArgs) -> Reply {
    let shell = match args.shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "gpuos", &mut script);
    let text = String::from_utf8_lossy(&script).into_owned();
    let json = json!({ "shell": shell.to_string(), "script": text });
    Reply {
        schema: "gpuos.completion/1",
        json,
        text,
        yes: true,
    }
}

pub fn man(args: &ManArgs) -> Result<Reply> {
    let mut command = Cli::command();
    command.build();
    let Some(dir) = &args.dir else {
        let text = page(command)?;
        let json = json!({ "page": text });
        return Ok(Reply {
            schema: "gpuos.man/1",
            json,
            text,
            yes: true,
        });
    };
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let mut files = Vec::new();
    pages(&command, "gpuos", dir, &mut files)?;
    files.sort();
    let text = files.iter().map(|file| format!("{file}\n")).collect();
    Ok(Reply {
        schema: "gpuos.man/1",
        json: json!({ "files": files }),
        text,
        yes: true,
    })
}

/// Writes the page of a command and those of its subcommands.
fn pages(command: &clap::Command, name: &str, dir: &Path, files: &mut Vec<String>) -> Result<()> {
    for sub in command.get_subcommands().filter(|c| c.get_name() != "help") {
        pages(sub, &format!("{name}-{}", sub.get_name()), dir, files)?;
    }
    // A man page is found by its own name; the usage line still has blanks in it.
    let named = command.clone().name(leaked(name));
    files.push(write(dir, name, &page(named)?)?);
    Ok(())
}

/// clap wants names that live as long as the program; there is one for each subcommand.
fn leaked(name: &str) -> &'static str {
    Box::leak(name.to_string().into_boxed_str())
}

fn page(command: clap::Command) -> Result<String> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command)
        .manual("gpuos")
        .render(&mut page)?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}

fn write(dir: &Path, name: &str, page: &str) -> Result<String> {
    let path = dir.join(format!("{name}.1"));
    std::fs::write(&path, page).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path.display().to_string())
}
