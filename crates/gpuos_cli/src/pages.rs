//! Man pages and shell completion, from the same table as the parser.

use std::path::Path;

use anyhow::{Context, Result};
use clap::CommandFactory;
use gpuos_config::options::OPTIONS;
use roff::{Roff, bold, italic, roman};
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
    files.push(write(dir, JOB_OPTIONS, &job_options())?);
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

/// Name of the page about the options that users give to Slurm's commands.
const JOB_OPTIONS: &str = "gpuos-options";

/// The page about `--gpuos-…` of sbatch, salloc and srun.
fn job_options() -> String {
    let mut page = Roff::new();
    page.control("TH", [JOB_OPTIONS, "1", "", "gpuos", "gpuos"]);
    page.control("SH", ["NAME"]);
    page.text([roman(format!(
        "{JOB_OPTIONS} - what gpuos adds to sbatch, salloc and srun"
    ))]);
    page.control("SH", ["SYNOPSIS"]);
    page.text([
        bold("sbatch"),
        roman(" | "),
        bold("salloc"),
        roman(" | "),
        bold("srun"),
        roman(" [--gpuos-...=VALUE]... ..."),
    ]);
    page.control("SH", ["DESCRIPTION"]);
    page.text([roman(
        "Each option may stand on the command line, in an #SBATCH line of the script, and as a default for all jobs in the \
         environment variable named below it. The command line wins over the script, and the script over the environment. The \
         value off undoes an option for this job or, with srun in a job, for this step. --gpuos=off leaves a job to Slurm alone.",
    )]);
    page.control("SH", ["OPTIONS"]);
    for option in OPTIONS {
        page.control("TP", []);
        page.text([
            bold(format!("--{}", option.name)),
            roman("="),
            italic(option.argument),
        ]);
        page.text([roman(option.details)]);
        page.control("RS", []);
        page.text([roman("Default: $"), roman(option.environment)]);
        page.control("RE", []);
    }
    page.control("SH", ["SEE ALSO"]);
    page.text([roman(
        "gpuos(1), sbatch(1), salloc(1), srun(1), and the documents of gpuos",
    )]);
    page.to_roff()
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
