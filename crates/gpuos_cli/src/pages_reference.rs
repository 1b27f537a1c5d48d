//! docs/reference/commands.md has every command and flag as it is, and messages.md what doctor looks at.

use clap::CommandFactory;

use crate::cli::Cli;
use crate::messages_page::parts::page;

const HEAD: &str = "\
# Commands

What each command of `gpuos` takes, as `gpuos COMMAND --help` prints it; [admin/commands.md](../admin/commands.md) says which one answers what.
Exit codes: 0 = yes, 1 = no (or not so), 2 = the question could not be answered. This page is made of the parser by `make reference`.
";

fn section(command: &clap::Command, name: &str, text: &mut String) {
    let help = command
        .clone()
        .bin_name(name.to_string())
        .term_width(100)
        .render_long_help()
        .to_string();
    let lines = help.lines().map(|line| format!("{}\n", line.trim_end()));
    *text += &format!("\n## {name}\n\n```text\n{}```\n", lines.collect::<String>());
    for sub in command.get_subcommands().filter(|c| c.get_name() != "help") {
        section(sub, &format!("{name} {}", sub.get_name()), text);
    }
}

#[test]
fn the_page_has_every_command_as_it_is() {
    let mut command = Cli::command();
    command.build();
    let mut text = HEAD.to_string();
    section(&command, "gpuos", &mut text);
    page::hold("reference/commands.md", &text, "make reference");
}

#[test]
fn the_page_of_messages_has_all_that_doctor_looks_at() {
    crate::messages_page::hold(&[("gpuos doctor", crate::doctor::about::ROWS)], &[]);
}
